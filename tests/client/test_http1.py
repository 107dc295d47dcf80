"""The HTTP/1.1 engine: what a server may do to a connection, and the outcome of the
exchange on it.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import socket
import struct
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest
from support.engine import EngineCalls, failure, statuses, stream_to, until
from tinker_wire.runtime import FormPieces, Stored

from tinker._http import engine_http, messages
from tinker._http.connections import READ_AHEAD_NBYTES
from tinker._http.engine_http import HttpEngine
from tinker._http.messages import Purpose, RawResponse
from tinker.errors import ClientClosedError

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
GUARD_SECONDS = 30
pytestmark = pytest.mark.httpunk("its connections, and what servers do to them")


@attrs.define(eq=False)
class Peer:
    """The server's side of one connection; ``number`` counts them."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heads: list[bytes] = attrs.field(factory=list)

    async def request(self) -> bytes:
        """Read a request with its body; return the body."""
        head = await self.head()
        lengths = [
            line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        ]
        return await self.reader.readexactly(int(lengths[0].partition(b":")[2])) if lengths else b""

    async def head(self) -> bytes:
        self.heads.append(await self.reader.readuntil(b"\r\n\r\n"))
        return self.heads[-1]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer_all(self) -> None:
        """Answer every request until the client disconnects."""
        while True:
            await self.request()
            await self.send(OK)

    async def lost(self) -> None:
        """Read until the client disconnects."""
        while await self.reader.read(1 << 16):
            pass

    def break_off(self) -> None:
        """Reset the connection."""
        self.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[Any]]


class Line(EngineCalls):
    """An engine and its server, which keeps every connection it has had."""

    def __init__(self, engine: HttpEngine, url: str, peers: list[Peer]) -> None:
        super().__init__(engine, url)
        self.peers = peers


def run(
    script: Script, use: Callable[[Line], Awaitable[T]], *, slots: Mapping[str, int] | None = None
) -> T:
    """Return what ``use`` returns, given an engine and a server with this script. The engine must
    leave nothing behind.
    """
    peers: list[Peer] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(Peer(len(peers), reader, writer))
        try:
            await script(peers[-1])
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def scenario() -> T:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
        engine = HttpEngine(connections=slots or {"session": 1000})
        line = Line(engine, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", peers)
        async with asyncio.timeout(GUARD_SECONDS):
            try:
                result = await use(line)
            finally:
                await engine.aclose()
                server.close()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        return result

    return asyncio.run(scenario())


def first_then_ok(first: Script) -> Script:
    """Return a script that does this to the first connection, and answers on the others."""

    async def script(peer: Peer) -> None:
        await (first(peer) if peer.number == 0 else peer.answer_all())

    return script


def after_request(answer: bytes) -> Script:
    """Return a script that reads a request and sends these bytes."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    return script


def test_connections_are_used_again() -> None:
    """Sequential exchanges share a connection; concurrent ones have one each."""

    async def use(line: Line) -> None:
        assert [(await line.send()).status for _ in range(5)] == [200] * 5
        assert len(line.peers) == 1
        assert statuses(await line.send_all(20)) == [200] * 20
        assert len(line.peers) <= 20

    run(Peer.answer_all, use)


@pytest.mark.parametrize("end", [Peer.break_off, lambda peer: peer.writer.close()])
def test_connections_that_break(end: Callable[[Peer], None]) -> None:
    """If a hundred connections end before a response, it is unknown for each request whether it
    ran.
    """

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number < 100:
            end(peer)
        else:
            await peer.send(OK)
            await peer.answer_all()

    async def use(line: Line) -> None:
        errors = await line.send_all(100)
        assert [failure(error).never_ran for error in errors] == [False] * 100
        assert statuses(await line.send_all(100)) == [200] * 100

    run(script, use)


def test_an_unreachable_server() -> None:
    """Without a connection no request ran, and each exchange fails with that error at once."""

    async def use(line: Line) -> None:
        line.url = "http://127.0.0.1:9"  # a port without a listener
        errors = await line.send_all(100)
        assert {(failure(error).never_ran, failure(error).wrong_address) for error in errors} == {
            (True, True)
        }

    run(Peer.lost, use)


def test_a_connection_that_the_server_closes_between_exchanges() -> None:
    """A connection that was closed while idle is not used again."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)

    async def use(line: Line) -> None:
        assert (await line.send()).status == 200
        await until(lambda: all(connection.is_closed for connection in line.engine.connections))
        assert (await line.send()).status == 200
        assert len(line.peers) == 2
        assert len(line.engine.connections) == 1

    run(script, use)


def test_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection is closed after a short time."""
    monkeypatch.setattr(engine_http, "IDLE_SECONDS", 0.05)

    async def use(line: Line) -> None:
        assert (await line.send()).status == 200
        await until(lambda: not line.engine.connections)
        await until(lambda: line.peers[0].reader.at_eof())

    run(Peer.answer_all, use)


@pytest.mark.skipif(sys.platform != "linux", reason="the names of the options are Linux's")
def test_connections_use_keepalive() -> None:
    """The system closes a connection whose peer has vanished: keepalive probes while idle, a limit
    for unacknowledged data.
    """

    async def use(line: Line) -> list[int]:
        await line.send()
        [connection] = line.engine.connections
        sock = connection._transport.get_extra_info("socket")
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        return [
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            *(sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names),
        ]

    on, idle, interval, count, unacknowledged = run(Peer.answer_all, use)
    assert on
    assert idle + interval * count <= 20
    assert unacknowledged <= 20_000


BAD = {
    "no response": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nconte",
    "half a body": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}",
    "half of the pieces": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "another protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
    "a length that is none": b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "pieces that are none": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}",
    "a head that is too large": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
    "a body that is too large": b"HTTP/1.1 200 OK\r\ncontent-length: 200000\r\n\r\n"
    + b"x" * 200_000,
    "a body without an end": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000,
    "trailers without an end": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    + b"a: b\r\n" * 50_000,
    "a body that is not packed": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("answer", BAD.values(), ids=list(BAD))
def test_unreadable_responses(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable response is a typed failure with unknown effect, at once, and the next exchange
    works.
    """
    monkeypatch.setattr(messages, "MAX_ANSWER_NBYTES", 100_000)

    async def use(line: Line) -> None:
        [error] = await line.send_all(1)
        assert (failure(error).never_ran, failure(error).timed_out) == (False, False)
        assert (await line.send()).status == 200

    run(first_then_ok(after_request(answer)), use)


#: With the number of connections that the exchange and the next one take.
GOOD = {
    "until the connection ends": (b"HTTP/1.1 200 OK\r\n\r\nbody", 2),
    "in pieces, with a trailer": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nbo\r\n2;x=y\r\ndy\r\n0\r\nt: v\r\n\r\n",
        1,
    ),
    "after early responses": (
        b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody",
        1,
    ),
    "with more than it": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbodyHTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno",
        2,
    ),
    "as an old server": (b"HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nbody", 2),
    "packed": (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"body"), 2),
}


@pytest.mark.parametrize(("answer", "connections"), GOOD.values(), ids=list(GOOD))
def test_responses_in_other_forms(answer: bytes, connections: int) -> None:
    """The body is read in every transfer form, and nothing of one response leaks into the next."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        if b"length" in answer or b"chunked" in answer:
            await peer.answer_all()

    async def use(line: Line) -> None:
        assert (await line.send()).content == b"body"
        assert (await line.send()).content == b"{}"
        assert len(line.peers) == connections

    run(first_then_ok(script), use)


def test_no_redirects_and_no_cookies() -> None:
    """A redirect is returned like any other response, and no cookie is sent back."""
    redirect = (
        b"HTTP/1.1 302 Found\r\nlocation: /other\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
    )

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(redirect)
        await peer.answer_all()

    async def use(line: Line) -> None:
        assert (await line.send()).status == 302
        await line.send()
        [peer] = line.peers
        assert [head.split(b" ")[1] for head in peer.heads] == [b"/path", b"/path"]
        assert b"cookie" not in b"".join(peer.heads).lower()

    run(script, use)


def test_a_response_before_the_body_was_sent() -> None:
    """An early response ends the upload and is delivered, and the connection is closed."""

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
        await peer.lost()

    async def use(line: Line) -> None:
        answer = await line.send([bytes(1 << 20)] * 32)
        assert (answer.status, answer.content) == (413, b"no")
        assert all(connection.is_closed for connection in line.engine.connections)
        assert (await line.send([bytes(2 << 20)])).status == 200

    run(first_then_ok(script), use)


def test_an_unreadable_body(tmp_path: Path) -> None:
    """An exception from reading a body in the middle of sending it is raised to the caller, and the
    connection is closed.
    """
    path = tmp_path / "file"
    path.write_bytes(bytes(64 << 20))
    pieces = FormPieces([Stored(path, 0, 64 << 20)])
    path.write_bytes(bytes(32 << 20))

    async def use(line: Line) -> None:
        with pytest.raises(OSError, match="became shorter"):
            await line.send(pieces)
        assert (await line.send([bytes(2 << 20)])).status == 200

    run(first_then_ok(Peer.lost), use)


def test_a_slow_reader_holds_the_server_back() -> None:
    """A receiver that stops reading buffers little of the body, and afterwards
    everything arrives.
    """
    nbytes = 64 << 20
    sent: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % nbytes)
        for _ in range(64):
            await peer.send(bytes(1 << 20))
            sent.append(1)

    async def use(line: Line) -> None:
        received, go_on = list[bytes](), asyncio.Event()
        slow = asyncio.ensure_future(line.send(receive=stream_to(received, go_on)))
        await until(
            lambda: any(
                not getattr(connection, "_is_reading", True)
                for connection in line.engine.connections
            )
        )
        assert len(sent) < 64
        go_on.set()
        await slow
        assert sum(map(len, received)) == nbytes

    run(script, use)


def test_closing_under_way() -> None:
    """Closing fails exchanges that wait for a slot, a response or the rest of one, and closes the
    connections.
    """
    received: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.head()
        if peer.number == 0:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npiece")
        await peer.lost()

    async def use(line: Line) -> None:
        tasks = [asyncio.ensure_future(line.send(receive=stream_to(received)))]
        await until(lambda: received)
        tasks += [asyncio.ensure_future(line.send()) for _ in range(10)]
        tasks += [
            asyncio.ensure_future(line.send([bytes(4 << 20)], purpose=Purpose.UPLOAD))
            for _ in range(3)
        ]
        await until(lambda: sum(len(peer.heads) for peer in line.peers) == 6)
        await line.engine.aclose()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ended[1:]} == {ClientClosedError}
        assert isinstance(ended[0], RawResponse)
        assert received == [b"piece", b"the connection was closed"]
        with pytest.raises(ClientClosedError):
            await line.send()

    run(script, use, slots={"session": 4, "upload": 2})


def test_cancelling() -> None:
    """Cancelling an exchange closes its connection and frees its slot."""

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 1:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npiece")
        if peer.number < 2:
            await peer.lost()
        else:
            await peer.send(OK)
            await peer.answer_all()

    async def use(line: Line) -> None:
        received: list[bytes] = []
        waiting = asyncio.ensure_future(line.send())
        await until(lambda: line.peers and line.peers[0].heads)
        streaming = asyncio.ensure_future(line.send(receive=stream_to(received)))
        await until(lambda: received)
        queued = asyncio.ensure_future(line.send())  # for a slot
        await asyncio.sleep(0)
        ended = [waiting, streaming, queued]
        for task in ended:
            task.cancel()
        assert {type(end) for end in await asyncio.gather(*ended, return_exceptions=True)} == {
            asyncio.CancelledError
        }
        await until(lambda: all(peer.reader.at_eof() for peer in line.peers))
        assert statuses(await line.send_all(10)) == [200] * 10
        assert all(connection.used == 0 for connection in line.engine.connections)

    run(script, use, slots={"session": 2})


def test_cancelling_while_connecting() -> None:
    """An exchange cancelled while connecting keeps neither a slot nor a connection."""

    async def use(line: Line) -> None:
        for turns in range(10):
            first = [asyncio.ensure_future(line.send()) for _ in range(20)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in first[::2]:
                task.cancel()
            ended = await asyncio.gather(*first, return_exceptions=True)
            assert statuses(ended[1::2]) == [200] * 10
        assert all(connection.used == 0 for connection in line.engine.connections)

    run(Peer.answer_all, use, slots={"session": 5})


def test_closed_connections_are_freed() -> None:
    """A closed connection is not kept in memory."""

    async def use(line: Line) -> weakref.ref[Any]:
        await line.send()
        [connection] = line.engine.connections
        return weakref.ref(connection)

    kept = run(Peer.answer_all, use)
    gc.collect()
    assert kept() is None


def test_a_receiver_that_is_slow_at_the_end() -> None:
    """A response that ends while its connection has paused reading does not prevent the next one
    from being read.
    """
    nbytes = READ_AHEAD_NBYTES + 1  # so the last byte is the one over the limit

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % nbytes + bytes(nbytes))
        await peer.answer_all()

    async def use(line: Line) -> None:
        sizes: list[int] = []

        async def receive(_: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
            (connection,) = line.engine.connections
            await until(lambda: connection._exchange is None)
            sizes.extend([len(piece) async for piece in pieces])

        await line.send(receive=receive)
        assert sum(sizes) == nbytes
        assert (await line.send()).content == b"{}"
        assert len(line.peers) == 1

    run(script, use)
