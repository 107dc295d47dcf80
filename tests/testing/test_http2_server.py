"""The scripted HTTP/2 server of the tests, seen by clients of two other implementations."""

from __future__ import annotations

import queue
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from httpunk import HeaderMap
from httpunk import _httpunk as wire
from support.http2_server import Connection, http2_server
from support.tls import client_context, server_context


def test_a_server_without_a_script_answers_everything() -> None:
    """Every request of a foreign client is answered on one connection, with large bodies too."""
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


def test_in_the_clear() -> None:
    """Without a context, clients that know HTTP/2 is spoken need no TLS."""
    with (
        http2_server() as server,
        httpx.Client(http1=False, http2=True, base_url=server.url) as client,
    ):
        assert client.get("/path").http_version == "HTTP/2"


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
    """A test counts the connections of a server, and gives them orders during an exchange."""
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
