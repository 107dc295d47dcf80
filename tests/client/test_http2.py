"""The engine on HTTP/2: what a server may do to streams and connections, and what becomes of the exchanges on them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import pytest
from httpunk import H2Reason, HeaderMap
from support.http2_server import Connection, Http2Server, Request, Script, http2_server
from support.tls import authority, server_context

from tinker._http import engine_http, http2, phase, pool
from tinker._http.engine_http import HttpEngine
from tinker._http.messages import ExchangeFailed, PreparedRequest, Purpose, RawResponse
from tinker.errors import ClientClosedError

T = TypeVar("T")
GUARD_SECONDS = 60


@pytest.fixture(autouse=True)
def trusted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificates of the servers here."""
    authority().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


@attrs.define
class Line:
    """An engine, and the server that it talks to."""

    engine: HttpEngine
    server: Http2Server

    async def send(self, body: Sequence[bytes | memoryview] = (b"{}",), **how: Any) -> RawResponse:
        return await self.engine.send(
            PreparedRequest(method="POST", url=f"{self.server.url}/path", headers={}, body=body, **how)
        )

    async def send_all(self, count: int, **how: Any) -> list[RawResponse | BaseException]:
        return await asyncio.gather(*(self.send(**how) for _ in range(count)), return_exceptions=True)

    @property
    def requests(self) -> list[Request]:
        return [request for connection in self.server.connections for request in connection.requests.values()]


async def until(condition: Callable[[], object]) -> None:
    """Wait until the other side has done something."""
    while not condition():
        await asyncio.sleep(0.001)


def run(script: Script, use: Callable[[Line], Awaitable[T]], *, slots: Mapping[str, int] | None = None, **settings: Any) -> T:
    """What ``use`` returns, given an engine and a server with this script. Nothing may be left of the engine."""

    async def scenario(server: Http2Server) -> T:
        engine = HttpEngine(connections=slots or {"session": 10_000})
        async with asyncio.timeout(GUARD_SECONDS):
            try:
                result = await use(Line(engine, server))
            finally:
                await engine.aclose()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with http2_server(script, ssl_context=server_context("h2"), **settings) as server:
        return asyncio.run(scenario(server))


def statuses(answers: Sequence[RawResponse | BaseException]) -> list[Any]:
    """The status of each answer, or its error."""
    return [answer.status if isinstance(answer, RawResponse) else answer for answer in answers]


def failure(answer: RawResponse | BaseException) -> ExchangeFailed:
    assert isinstance(answer, ExchangeFailed), answer
    return answer


# ------------------------------------------------------------------------------------------------------------- what never ran


@pytest.mark.parametrize(
    ("code", "never_ran"),
    [
        (H2Reason.REFUSED_STREAM, True),
        (H2Reason.CANCEL, False),
        (H2Reason.INTERNAL_ERROR, False),
        (H2Reason.NO_ERROR, False),
        (H2Reason.ENHANCE_YOUR_CALM, False),
    ],
)
def test_a_reset_stream(code: H2Reason, never_ran: bool) -> None:
    """A refused stream never ran; of one that was reset otherwise it is unknown. The connection goes on."""

    async def script(connection: Connection) -> None:
        connection.reset(await connection.request(), code)
        await connection.answer_all()

    async def use(line: Line) -> None:
        [error] = await line.send_all(1)
        assert (failure(error).never_ran, failure(error).never_connected) == (never_ran, False)
        assert (await line.send()).status == 200
        assert len(line.server.connections) == 1

    run(script, use)


def test_going_away() -> None:
    """Streams up to the last one of GOAWAY are answered, those above never ran, and what follows has another connection."""

    async def script(connection: Connection) -> None:
        if connection.number:
            return await connection.answer_all()
        held = [await connection.request() for _ in range(4)]
        connection.go_away(held[1])
        await connection.respond(held[0], b"first")
        await until(lambda: len(connection.server.connections) > 1)
        await connection.respond(held[1], b"second")
        await connection.lost()

    async def use(line: Line) -> None:
        sent = [asyncio.ensure_future(line.send()) for _ in range(4)]
        errors = await asyncio.gather(*sent[2:], return_exceptions=True)
        assert [failure(error).never_ran for error in errors] == [True, True]
        assert (await line.send()).status == 200
        assert [(await one).content for one in sent[:2]] == [b"first", b"second"]
        assert [len(connection.requests) for connection in line.server.connections] == [4, 1]

    run(script, use)


def test_a_graceful_end() -> None:
    """A GOAWAY with the highest number, which warns, and then one with the last stream, lets everything finish."""

    async def script(connection: Connection) -> None:
        held = [await connection.request() for _ in range(2)]
        connection.send(connection.codec.serialize_go_away(2**31 - 1, 0))
        connection.go_away(held[-1])
        for request in held:
            await connection.respond(request)
        await connection.lost()

    async def use(line: Line) -> None:
        assert statuses(await line.send_all(2)) == [200, 200]

    run(script, use)


@pytest.mark.parametrize("end", [Connection.break_off, lambda connection: connection.transport.close()])
def test_a_connection_that_dies(end: Callable[[Connection], None]) -> None:
    """Of a hundred streams on a connection that ends it is unknown whether they ran; all of them share one new connection."""

    async def script(connection: Connection) -> None:
        if connection.number:
            return await connection.answer_all()
        for _ in range(100):
            await connection.request()
        end(connection)

    async def use(line: Line) -> None:
        errors = await line.send_all(100)
        assert [failure(error).never_ran for error in errors] == [False] * 100
        assert statuses(await line.send_all(100)) == [200] * 100
        assert len(line.server.connections) == 2

    run(script, use)


def test_a_server_that_is_not_there() -> None:
    """Without a connection nothing ran, and each exchange says so at once."""

    async def use(line: Line) -> None:
        line.server.url = "https://localhost:9"  # where nothing listens
        errors = await line.send_all(1_000)
        assert {(failure(error).never_ran, failure(error).never_connected) for error in errors} == {(True, True)}

    run(Connection.lost, use)


# ------------------------------------------------------------------------------------------------------------ limits of streams


@pytest.mark.parametrize("limit", [1, 10])
def test_a_limit_of_streams(limit: int) -> None:
    """No connection has more streams than the server allows, and all requests are answered."""

    async def script(connection: Connection) -> None:
        held: list[Request] = []
        while True:
            held.append(await connection.head())
            assert len(held) <= limit
            await asyncio.sleep(0.001)
            if len(held) == limit or not connection._heads:
                for request in held:
                    await connection.answer(request)
                held.clear()

    async def use(line: Line) -> None:
        assert statuses(await line.send_all(100)) == [200] * 100
        assert len(line.server.connections) <= 100 // limit + 1

    run(script, use, max_concurrent_streams=limit)


def test_a_limit_that_changes() -> None:
    """New settings count at once: no more streams than they allow are opened, those that are open go on, and what they add is used."""

    async def script(connection: Connection) -> None:
        first_connection = connection.server.connections[0]
        if connection is not first_connection:
            connection.send(connection.codec.serialize_settings(max_concurrent_streams=1))
            held = await connection.request()
            await until(lambda: len(first_connection.requests) == 16)
            await connection.respond(held)
            return await connection.lost()
        held_here = [await connection.request() for _ in range(5)]
        connection.send(connection.codec.serialize_settings(max_concurrent_streams=2))
        for request in held_here[:4]:
            await connection.respond(request)
        held_here = [held_here[4], await connection.head()]
        await until(lambda: len(connection.server.connections) > 1)
        connection.send(connection.codec.serialize_settings(max_concurrent_streams=50))
        held_here += [await connection.head() for _ in range(10)]
        for request in held_here:
            await connection.answer(request)
        await connection.lost()

    async def use(line: Line) -> None:
        sent = [asyncio.ensure_future(line.send()) for _ in range(5)]
        await until(lambda: sum(one.done() for one in sent) == 4)
        sent += [asyncio.ensure_future(line.send()) for _ in range(2)]
        await until(lambda: len(line.server.connections) == 2 and len(line.server.connections[1].requests) == 1)
        sent += [asyncio.ensure_future(line.send()) for _ in range(10)]
        assert statuses(await asyncio.gather(*sent)) == [200] * 17
        assert len(line.server.connections) == 2

    run(script, use, max_concurrent_streams=5)


def test_a_limit_of_no_streams() -> None:
    """A server that allows no stream is waited for, and gets what has waited when it allows some."""

    async def script(connection: Connection) -> None:
        connection.send(connection.codec.serialize_settings(max_concurrent_streams=20))
        await connection.answer_all()

    async def use(line: Line) -> None:
        assert statuses(await line.send_all(50)) == [200] * 50
        assert len(line.server.connections) <= 5

    run(script, use, max_concurrent_streams=0)


def test_never_a_stream() -> None:
    """For a server that allows no stream for good nothing ran, and no connection after the other is opened."""

    async def script(connection: Connection) -> None:
        while True:  # those that were sent before the settings arrived
            connection.reset(await connection.head(), H2Reason.REFUSED_STREAM)

    async def use(line: Line) -> None:
        errors = await line.send_all(50, silence_seconds=0.5)
        assert {failure(error).never_ran for error in errors} == {True}
        assert len(line.server.connections) == 1

    run(script, use, max_concurrent_streams=0)


def test_ten_thousand_at_once() -> None:
    """Ten thousand exchanges that wait at the same time share a hundred connections, and each is answered."""
    count = 10_000

    async def script(connection: Connection) -> None:
        await connection.wait_until(lambda: len(connection.requests) == 100)
        await connection.answer_all()

    async def use(line: Line) -> None:
        assert statuses(await line.send_all(count, purpose=Purpose.POLL)) == [200] * count
        assert len(line.server.connections) == 100

    run(script, use, slots={"poll": count}, max_concurrent_streams=100)
