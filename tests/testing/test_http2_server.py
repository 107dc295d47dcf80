"""The scripted HTTP/2 server of the tests, seen by clients of two other implementations."""

from __future__ import annotations

import asyncio
import queue
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpunk
import httpx
import pytest
from httpunk import Backend, H2Reason, HeaderMap
from httpunk import _httpunk as wire
from httpunk.util import connect
from support.http2_server import Connection, Http2Server, Script, http2_server
from support.tls import client_context, server_context

from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine

Client = httpunk.H2Connection


def run(
    script: Script, use: Callable[[Client], Awaitable[Any]], **settings: Any
) -> tuple[Any, Http2Server]:
    """Return what ``use`` returns, given a connection to a server with this script."""

    async def exchange(url: str) -> Any:
        async with asyncio.timeout(30):
            async with await connect(
                url, backend=Backend.asyncio, ssl_context=client_context("h2")
            ) as client:
                assert isinstance(client, Client)
                return await use(client)

    with http2_server(script, ssl_context=server_context("h2"), **settings) as server:
        return asyncio.run(exchange(server.url)), server


async def post(client: Client, body: bytes = b"{}") -> bytes:
    """Return the body of the response to a request with a body."""
    response = await client.request("POST", "/path", headers={"host": "localhost"}, body=body)
    return await response.read()


async def post_all(client: Client, count: int) -> list[Any]:
    """Return the bodies or errors of as many requests at once."""
    return await asyncio.gather(*[post(client) for _ in range(count)], return_exceptions=True)


def test_a_server_without_a_script_answers_everything() -> None:
    """Every request is answered, over one connection and for a client of another implementation,
    with bodies beyond any window.
    """
    with (
        http2_server(ssl_context=server_context("h2")) as server,
        httpx.Client(http2=True, verify=client_context("h2")) as client,
    ):
        answers = [client.post(server.url, content=b"x" * size) for size in (0, 1, 1_000_000)]
    assert {(answer.http_version, answer.status_code, answer.text) for answer in answers} == {
        ("HTTP/2", 200, "{}")
    }
    assert [len(request.body) for request in server.connections[0].requests.values()] == [
        0,
        1,
        1_000_000,
    ]


def test_the_application_answers() -> None:
    """With an application, responses are its own."""
    app = create_app(State(ToyEngine, Settings()))
    with (
        http2_server(app=app) as server,
        httpx.Client(http1=False, http2=True, base_url=server.url) as client,
    ):
        assert client.get("/api/v1/healthz").json() == {"status": "ok"}


def test_in_the_clear() -> None:
    """Without a context, clients that know HTTP/2 is spoken need no TLS."""
    with (
        http2_server() as server,
        httpx.Client(http1=False, http2=True, base_url=server.url) as client,
    ):
        assert client.get("/path").http_version == "HTTP/2"


@pytest.mark.parametrize(
    "code", [H2Reason.REFUSED_STREAM, H2Reason.CANCEL, H2Reason.INTERNAL_ERROR]
)
def test_a_stream_is_reset(code: H2Reason) -> None:
    """A reset ends one stream with its code, and the next one is answered."""

    async def script(connection: Connection) -> None:
        connection.reset(await connection.head(), code)
        await connection.answer_all()

    (first, second), _ = run(script, lambda client: post_all(client, 2))
    assert (first.error_code, second) == (code, b"{}")


def test_goaway_below_open_streams() -> None:
    """After GOAWAY the streams up to the last one are answered, and those above it end."""

    async def script(connection: Connection) -> None:
        first, _ = await connection.request(), await connection.request()
        connection.go_away(first)
        await connection.respond(first, b"first")
        await connection.lost()

    (first, second), server = run(script, lambda client: post_all(client, 2))
    assert (first, type(second)) == (b"first", httpunk.GoAwayError)
    assert second.last_stream_id == next(iter(server.connections[0].requests))


@pytest.mark.parametrize(
    "end", [Connection.break_off, lambda connection: connection.transport.close()]
)
def test_a_connection_breaks(end: Callable[[Connection], None]) -> None:
    """A reset of TCP and an orderly end both end every request of the connection."""

    async def script(connection: Connection) -> None:
        for _ in range(3):
            await connection.head()
        end(connection)

    errors, _ = run(script, lambda client: post_all(client, 3))
    assert [type(error) for error in errors] == [httpunk.ConnectionClosedError] * 3


def test_the_limit_of_streams() -> None:
    """A client opens no more streams than the settings allow, until one is answered."""
    counts: list[int] = []

    async def script(connection: Connection) -> None:
        held = [await connection.request() for _ in range(2)]
        for _ in range(3):
            counts.append(len(connection.requests))
            await connection.respond(held.pop(0))
            held.append(await connection.request())
        await asyncio.gather(*map(connection.respond, held))
        await connection.lost()

    async def use(client: Client) -> list[Any]:
        await client.ready()
        return await post_all(client, 5)

    answers, _ = run(script, use, max_concurrent_streams=2)
    assert (answers, counts) == ([b"{}"] * 5, [2, 3, 4])


def test_small_windows_and_a_slow_reader() -> None:
    """A client sends as much of a body as the window allows, and the rest when the window is
    opened.
    """
    seen: list[int] = []

    async def script(connection: Connection) -> None:
        connection.opens_windows = False
        request = await connection.head()
        for size in (1000, 1500, 3000):
            await connection.wait_until(lambda wanted=size: len(request.body) >= wanted)  # type: ignore[misc]
            seen.append(len(request.body))
            connection.open_window(request, 500 if size == 1000 else 10_000)
        await connection.respond(request)
        await connection.lost()

    answer, _ = run(script, lambda client: post(client, b"x" * 3000), initial_window_size=1000)
    assert (answer, seen) == (b"{}", [1000, 1500, 3000])


def test_a_long_response_waits_for_the_windows_of_the_client() -> None:
    """A body larger than every window of the client arrives whole."""

    async def script(connection: Connection) -> None:
        await connection.respond(await connection.request(), b"x" * 3_000_000)
        await connection.lost()

    with http2_server(script, ssl_context=server_context("h2")) as server:
        answer = httpx.Client(http2=True, verify=client_context("h2")).get(server.url)
    assert answer.content == b"x" * 3_000_000


@pytest.mark.parametrize("answers", [True, False])
def test_pings(answers: bool) -> None:
    """Pings are counted, and acknowledged unless the script says no."""

    async def script(connection: Connection) -> None:
        connection.answers_pings = answers
        await connection.answer_all()

    codec = wire.H2Codec("client")
    head = codec.serialize_request_headers(
        1, "GET", "/", HeaderMap(), True, scheme="http", authority="x"
    )
    with (
        http2_server(script) as server,
        socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), 10) as peer,
    ):
        peer.sendall(
            wire.H2_PREFACE + codec.serialize_settings() + codec.serialize_ping(b"8 bytes.") + head
        )
        frames: list[wire.H2Frame] = []
        while not any(isinstance(frame, wire.H2FrameHeaders) for frame in frames):
            frames += codec.receive(peer.recv(65_536))
    assert [frame.data for frame in frames if isinstance(frame, wire.H2FramePing)] == [
        b"8 bytes."
    ] * answers
    assert server.connections[0].pings == 1


def test_no_settings() -> None:
    """A server that does not greet says nothing until its script does."""

    async def script(connection: Connection) -> None:
        await connection.wait_until(lambda: connection.pings)
        connection.send(b"the end")

    with http2_server(script, greets=False) as server:
        codec = wire.H2Codec("client")
        with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), 10) as peer:
            peer.sendall(wire.H2_PREFACE + codec.serialize_ping(b"8 bytes."))
            received = b"".join(iter(lambda: peer.recv(65_536), b""))
    assert received == codec.serialize_ping_ack(b"8 bytes.") + b"the end"


def test_orders_of_the_test() -> None:
    """A test counts the connections of a server, and gives them orders in the middle of an
    exchange.
    """
    arrived: queue.Queue[Connection] = queue.Queue()

    async def script(connection: Connection) -> None:
        await connection.request()
        arrived.put(connection)
        await connection.lost()

    with (
        http2_server(script) as server,
        httpx.Client(http1=False, http2=True, timeout=30) as client,
        ThreadPoolExecutor() as pool,
    ):
        for number in range(2):
            pending = pool.submit(client.get, server.url)
            connection = arrived.get(timeout=30)
            server.portal.call(connection.break_off)
            assert isinstance(pending.exception(30), httpx.TransportError)
            assert server.connections[number] is connection


def test_what_a_script_raises_fails_the_test() -> None:
    """An assertion of a script ends its connection, and is raised at the end of the block."""

    async def script(connection: Connection) -> None:
        assert (await connection.request()).path == "/other"

    client = httpx.Client(http1=False, http2=True)
    with (
        client,
        pytest.raises(AssertionError),
        http2_server(script) as server,
        pytest.raises(httpx.TransportError),
    ):
        client.get(server.url)
