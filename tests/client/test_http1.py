"""The HTTP/1.1 engine: what a server may do to a connection, and the outcome of the
exchange on it.
"""

from __future__ import annotations

import gzip
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

import pytest
from support.engine import Line, failure, statuses, until, use_engine
from support.http1_server import Connection, Script, http1_server

from tinker._http import messages
from tinker._http.connections import READ_AHEAD_NBYTES

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\n"
pytestmark = pytest.mark.httpunk("its connections, and what servers do to them")


def run(script: Script, use: Callable[[Line], Awaitable[T]]) -> T:
    return use_engine(http1_server(script), use)


def answering(answer: bytes, *, goes_on: bool = False) -> Script:
    """Return a script that answers the first request with these bytes, and then ends the connection
    unless it goes on; other requests are answered as usual.
    """

    async def script(peer: Connection) -> None:
        if peer.number == 0:
            await peer.request()
            await peer.send(answer)
        if peer.number or goes_on:
            await peer.answer_all()

    return script


def test_connections_are_used_again() -> None:
    """Sequential exchanges share a connection; concurrent ones have one each."""

    async def use(line: Line) -> None:
        assert [(await line.send()).status for _ in range(5)] == [200] * 5
        assert len(line.connections) == 1
        assert statuses(await line.send_all(20)) == [200] * 20
        assert len(line.connections) <= 20

    run(Connection.answer_all, use)


def test_a_connection_that_the_server_closes_between_exchanges() -> None:
    """A connection that was closed while idle is not used again."""

    async def script(peer: Connection) -> None:
        await peer.respond(await peer.request())

    async def use(line: Line) -> None:
        assert (await line.send()).status == 200
        await until(lambda: all(connection.is_closed for connection in line.engine.connections))
        assert (await line.send()).status == 200
        assert len(line.connections) == 2
        assert len(line.engine.connections) == 1

    run(script, use)


@pytest.mark.skipif(sys.platform != "linux", reason="the names of the options are Linux's")
def test_connections_use_keepalive() -> None:
    """A connection whose peer has vanished is closed, by probes and a limit for unsent data."""

    async def use(line: Line) -> list[int]:
        await line.send()
        [connection] = line.engine.connections
        sock = connection._transport.get_extra_info("socket")
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        return [
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            *(sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names),
        ]

    on, idle, interval, count, unacknowledged = run(Connection.answer_all, use)
    assert on
    assert idle + interval * count <= 20
    assert unacknowledged <= 20_000


BAD = {
    "no response": b"",
    "half a head": OK + b"conte",
    "half a body": OK + b"content-length: 10\r\n\r\n{}",
    "half of the pieces": OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "another protocol": b"SSH-2.0-OpenSSH\r\n\r\n",
    "a length that is none": OK + b"content-length: x\r\n\r\n",
    "two lengths": OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "pieces that are none": OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}",
    "a head that is too large": OK + b"x: " + b"a" * 200_000 + b"\r\n\r\n",
    "too many headers": OK + b"" + b"a: b\r\n" * 1000 + b"\r\n",
    "a body that is too large": OK + b"content-length: 200000\r\n\r\n" + b"x" * 200_000,
    "a body without an end": OK + b"\r\n" + b"x" * 200_000,
    "trailers without an end": OK
    + b"transfer-encoding: chunked\r\n\r\n0\r\n"
    + b"a: b\r\n" * 50_000,
    "a body that is not packed": OK + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("answer", BAD.values(), ids=list(BAD))
def test_unreadable_responses(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable response is a typed failure of unknown effect; the next exchange works."""
    monkeypatch.setattr(messages, "MAX_ANSWER_NBYTES", 100_000)

    async def use(line: Line) -> None:
        [error] = await line.send_all(1)
        assert (failure(error).never_ran, failure(error).timed_out) == (False, False)
        assert (await line.send()).status == 200

    # after a whole response the connection is used again, so it must not end meanwhile
    run(answering(answer, goes_on=b"gzip" in answer), use)


#: With the number of connections that the exchange and the next one take.
GOOD = {
    "until the connection ends": (OK + b"\r\nbody", 2),
    "in pieces, with a trailer": (
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\nbo\r\n2;x=y\r\ndy\r\n0\r\nt: v\r\n\r\n",
        1,
    ),
    "after early responses": (
        b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody",
        1,
    ),
    "with more than it": (
        OK + b"content-length: 4\r\n\r\nbodyHTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno",
        2,
    ),
    "as an old server": (b"HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nbody", 2),
    "packed": (OK + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"body"), 2),
}


@pytest.mark.parametrize(("answer", "connections"), GOOD.values(), ids=list(GOOD))
def test_responses_in_other_forms(answer: bytes, connections: int) -> None:
    """The body is read in every transfer form, and nothing of one response leaks into the next."""

    async def use(line: Line) -> None:
        assert (await line.send()).content == b"body"
        assert (await line.send()).content == b"{}"
        assert len(line.connections) == connections

    goes_on = b"length" in answer or b"chunked" in answer
    run(answering(answer, goes_on=goes_on), use)


def test_no_redirects_and_no_cookies() -> None:
    """A redirect is returned like any other response, and no cookie is sent back."""
    redirect = (
        b"HTTP/1.1 302 Found\r\nlocation: /other\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
    )

    async def use(line: Line) -> None:
        assert (await line.send()).status == 302
        await line.send()
        assert [one.head.split(b" ")[1] for one in line.requests] == [b"/path", b"/path"]
        assert not any(b"cookie" in one.head.lower() for one in line.requests)
        assert len(line.connections) == 1

    run(answering(redirect, goes_on=True), use)


def test_a_response_before_the_body_was_sent() -> None:
    """An early response ends the upload and is delivered, and the connection is closed."""

    answered: list[int] = []

    async def script(peer: Connection) -> None:
        if peer.number == 0:
            await peer.respond(await peer.head(), b"no", 413)
            # it does not read on: it could have the whole body before the client sees the response
            await until(lambda: answered)
        else:
            await peer.answer_all()

    async def use(line: Line) -> None:
        answer = await line.send([bytes(1 << 20)] * 32)
        assert (answer.status, answer.content) == (413, b"no")
        assert all(connection.is_closed for connection in line.engine.connections)
        answered.append(answer.status)
        assert (await line.send([bytes(2 << 20)])).status == 200

    run(script, use)


def test_a_receiver_that_is_slow_at_the_end() -> None:
    """A response that ends while reading is paused does not keep the next from being read."""
    nbytes = READ_AHEAD_NBYTES + 1  # so the last byte is the one over the limit

    async def script(peer: Connection) -> None:
        await peer.respond(await peer.request(), bytes(nbytes))
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
        assert len(line.connections) == 1

    run(script, use)
