"""The HTTP engine over either protocol: what a server may do, and the outcome of the exchanges."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine import Line, failure, statuses, stream_to, until, use_engine
from support.http1_server import http1_server
from support.http2_server import http2_server
from support.tls import server_context
from tinker_wire.runtime import FormPieces, Stored

from tinker._http.messages import Purpose, RawResponse
from tinker.errors import ClientClosedError

Run = Callable[..., Any]
pytestmark = pytest.mark.httpunk("its connections, and what servers do to them")


@pytest.fixture(params=["http/1.1", "h2"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(protocol: str, ca_file: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what uses an engine with a server that has a script."""
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))

    def run(script: Any, use: Any, slots: dict[str, int] | None = None, **of_http2: int) -> Any:
        if protocol == "http/1.1":
            return use_engine(http1_server(script), use, slots)
        server = http2_server(script, ssl_context=server_context("h2"), **of_http2)
        return use_engine(server, use, slots)

    return run


async def given_up(connection: Any, request: Any) -> None:
    """Wait until the client gives up a request: over HTTP/1.1, with its connection."""
    if hasattr(connection, "wait_until"):
        await connection.wait_until(lambda: request.error_code is not None)
    else:
        await connection.lost()


async def answer_all(connection: Any) -> None:
    await connection.answer_all()


@pytest.mark.parametrize("end", [lambda one: one.break_off(), lambda one: one.transport.close()])
def test_connections_that_break(end: Callable[[Any], None], run: Run, protocol: str) -> None:
    """If connections with a hundred requests end, it is unknown whether those ran; later ones are
    answered, over HTTP/2 on one new connection.
    """
    on_each = 100 if protocol == "h2" else 1

    async def script(connection: Any) -> None:
        if connection.number >= 100 // on_each:
            await connection.answer_all()
        for _ in range(on_each):
            await connection.request()
        end(connection)

    async def use(line: Line) -> None:
        errors = await line.send_all(100)
        assert [failure(error).never_ran for error in errors] == [False] * 100
        assert statuses(await line.send_all(100)) == [200] * 100
        assert len(line.connections) == 2 or protocol == "http/1.1"

    run(script, use)


def test_an_unreachable_server(run: Run, protocol: str) -> None:
    """Without a connection no request ran, and each exchange fails with that error at once."""

    async def use(line: Line) -> None:
        line.url = line.url.rpartition(":")[0] + ":9"  # a port without a listener
        for error in map(failure, await line.send_all(1_000 if protocol == "h2" else 100)):
            assert error.never_ran
            assert error.never_connected
            assert error.wrong_address

    run(answer_all, use)


def test_idle_connections_end(run: Run, protocol: str) -> None:
    """An idle connection gets no pings, and is closed after a short time."""

    async def use(line: Line) -> None:
        assert (await line.send()).status == 200
        for _ in range(20):
            await line.skip(1)
        assert not line.engine.connections
        await until(lambda: line.connections[0]._is_lost)
        assert protocol == "http/1.1" or line.connections[0].pings == 0

    run(answer_all, use)


def test_an_unreadable_body(run: Run, tmp_path: Path) -> None:
    """An exception from reading a body is raised to the caller, and the next exchange works."""
    path = tmp_path / "file"
    path.write_bytes(bytes(8 << 20))
    pieces = FormPieces([Stored(path, 0, 8 << 20)])
    path.write_bytes(bytes(4 << 20))

    async def script(connection: Any) -> None:
        if connection.number == 0:
            await given_up(connection, await connection.head())
        await connection.answer_all()

    async def use(line: Line) -> None:
        with pytest.raises(OSError, match="became shorter"):
            await line.send(pieces)
        assert (await line.send([bytes(2 << 20)])).status == 200

    run(script, use)


def test_a_slow_reader_holds_the_server_back(run: Run, protocol: str) -> None:
    """A receiver that stops reading buffers little; other exchanges go on, and all arrives."""
    pieces, sent = 48, list[int]()

    async def respond_slowly(connection: Any) -> None:
        request = await connection.request()
        connection.begin(request)
        for number in range(pieces):
            await connection.write(request, bytes(1 << 20), end=number == pieces - 1)
            sent.append(number)

    async def script(connection: Any) -> None:
        if connection.number:
            await connection.answer_all()
        slow = asyncio.ensure_future(respond_slowly(connection))
        if protocol == "h2":
            await until(lambda: any(one.window == 0 for one in connection.requests.values()))
            await connection.respond(await connection.request())
        await slow
        await connection.lost()

    def is_held(line: Line) -> bool:
        if protocol == "h2":
            return bool(line.requests) and line.requests[0].window == 0
        return not all(one._is_reading for one in line.engine.connections)

    async def use(line: Line) -> None:
        received, go_on = list[bytes](), asyncio.Event()
        slow = line.begin(receive=stream_to(received, go_on))
        await until(lambda: received and is_held(line))
        assert (await line.send()).status == 200
        assert len(sent) < pieces
        go_on.set()
        await slow
        assert sum(map(len, received)) == pieces << 20

    run(script, use)


def test_closing_under_way(run: Run) -> None:
    """Closing fails exchanges wherever they are, and closes the connections."""
    received: list[bytes] = []

    async def script(connection: Any) -> None:
        request = await connection.head()
        if connection.number == 0:
            connection.begin(request)
            await connection.write(request, b"piece", end=False)
        await connection.lost()

    async def use(line: Line) -> None:
        streaming = line.begin(receive=stream_to(received))
        await until(lambda: received)
        tasks = [line.begin() for _ in range(10)]
        tasks += [line.begin([bytes(4 << 20)], purpose=Purpose.POLL) for _ in range(3)]
        await until(lambda: len(line.requests) == 6)
        await line.engine.aclose()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ended} == {ClientClosedError}
        assert isinstance(await streaming, RawResponse)
        assert received == [b"piece", b"the connection was closed"]
        with pytest.raises(ClientClosedError):
            await line.send()
        await until(lambda: all(one._is_lost for one in line.connections))

    run(script, use, {"session": 4, "poll": 2})


def test_cancelling(run: Run, protocol: str) -> None:
    """Cancelling ends a stream, or HTTP/1.1's connection, and frees its slot and place."""
    first_two: list[Any] = []

    async def script(connection: Any) -> None:
        while len(first_two) < 2:
            first_two.append(await connection.request())
            if len(first_two) == 2:
                connection.begin(first_two[1])
                await connection.write(first_two[1], b"piece", end=False)
            if protocol == "http/1.1":
                await connection.lost()
        for request in first_two if connection.number == 0 else ():
            await given_up(connection, request)
        await connection.answer_all()

    async def use(line: Line) -> None:
        received: list[bytes] = []
        waiting = line.begin()
        await until(lambda: len(first_two) == 1)
        streaming = line.begin(receive=stream_to(received))
        await until(lambda: received)
        queued = line.begin()  # for a slot
        await asyncio.sleep(0)
        for task in (queued, waiting, streaming):
            task.cancel()
        ended = await asyncio.gather(waiting, streaming, queued, return_exceptions=True)
        assert [type(end) for end in ended] == [asyncio.CancelledError] * 3
        assert statuses(await line.send_all(10)) == [200] * 10
        assert all(connection.used == 0 for connection in line.engine.connections)
        assert len(line.connections) == 1 or protocol == "http/1.1"

    run(script, use, {"session": 2})


def test_cancelling_while_connecting(run: Run, protocol: str) -> None:
    """Cancelled while it connects, an exchange keeps no slot, and others use the connection."""

    async def use(line: Line) -> None:
        for turns in range(10):
            first = [line.begin() for _ in range(30)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in first[::2]:
                task.cancel()
            ended = await asyncio.gather(*first, return_exceptions=True)
            assert statuses(ended[1::2]) == [200] * 15
        assert all(connection.used == 0 for connection in line.engine.connections)
        assert len(line.connections) <= 3 or protocol == "http/1.1"

    run(answer_all, use, {"session": 15}, max_concurrent_streams=10)


def test_closed_connections_are_freed(run: Run) -> None:
    """A closed connection, and what was sent and received on it, is not kept in memory."""

    async def use(line: Line) -> weakref.ref[Any]:
        await line.send()
        [connection] = line.engine.connections
        return weakref.ref(connection)

    kept = run(answer_all, use)
    gc.collect()
    assert kept() is None
