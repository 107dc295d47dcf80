"""Faults on a port with TLS, over HTTP/2 and HTTP/1.1."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import httpunk
import pytest
from httpunk import Backend, H2Reason
from httpunk.util import connect
from support.tls import client_context, server_context

from tinker.testing import FaultyServer, toy_server

HEALTH = "/api/v1/healthz"
ALL = ("h2", "http/1.1")
Live: TypeAlias = tuple[FaultyServer, str]
Connection: TypeAlias = "httpunk.H1Connection | httpunk.H2Connection"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """Yield a server on a port with TLS, which speaks both versions."""
    with toy_server(tmp_path) as server, server.on_port(ssl_context=server_context(*ALL)) as url:
        yield server, url


def on_connection(
    url: str,
    use: Callable[[Connection], Coroutine[Any, Any, Any]],
    *protocols: str,
    timeout: float = 30.0,
) -> Any:
    """Return what ``use`` returns, given one connection."""

    async def run() -> Any:
        async with asyncio.timeout(timeout):
            context = client_context(*protocols)
            async with await connect(
                url, backend=Backend.asyncio, alpn=protocols, ssl_context=context
            ) as connection:
                return await use(connection)

    return asyncio.run(run())


async def get(connection: Connection) -> tuple[int, bytes]:
    """Status and body of a check of health."""
    response = await connection.request("GET", HEALTH, headers={"host": "localhost"})
    return response.status, await response.read()


OK = (200, b'{"status":"ok"}')


@pytest.mark.parametrize(
    ("offers", "asks"), [(ALL, ("h2",)), (ALL, ("http/1.1",)), (("http/1.1",), ALL), (("h2",), ALL)]
)
def test_the_client_chooses_among_what_the_context_offers(
    tmp_path: Path, offers: tuple[str, ...], asks: tuple[str, ...]
) -> None:
    """The port speaks the version that ALPN agrees on, under a name that the certificate has."""

    async def use(connection: Connection) -> bool:
        assert await get(connection) == OK
        return isinstance(connection, httpunk.H2Connection)

    with toy_server(tmp_path) as server, server.on_port(ssl_context=server_context(*offers)) as url:
        assert url.startswith("https://localhost:")
        assert on_connection(url, use, *asks) == (offers[0] == asks[0] == "h2")


def test_many_requests_share_a_connection(live: Live) -> None:
    """Requests of one connection are carried out beside each other, with large bodies too."""
    server, url = live

    async def use(connection: Connection) -> list[int]:
        posts = [
            connection.request("POST", "/api/v1/create_session", body=b'"' + b"x" * 2_000_000)
            for _ in range(3)
        ]
        server.hang_next("healthz")
        hanging = asyncio.create_task(get(connection))
        await asyncio.to_thread(server.wait_for, "healthz")
        answers = await asyncio.gather(*posts)
        hanging.cancel()
        return [*[answer.status for answer in answers], (await get(connection))[0]]

    assert on_connection(url, use, "h2") == [422, 422, 422, 200]
    assert {len(one.body) for one in server.requests("create_session")} == {2_000_001}


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize(
    "code", [H2Reason.REFUSED_STREAM, H2Reason.CANCEL, H2Reason.INTERNAL_ERROR]
)
def test_a_reset_ends_one_stream(live: Live, code: H2Reason, applied: bool) -> None:
    """A drop with a code resets its stream with it, before or after the request, and no other."""
    server, url = live
    server.drop_next("healthz", applied=applied, error_code=int(code))

    async def use(connection: Connection) -> object:
        with pytest.raises(httpunk.StreamResetError) as caught:
            await get(connection)
        assert await get(connection) == OK
        return caught.value.error_code

    assert on_connection(url, use, "h2") == code


@pytest.mark.parametrize("protocol", ALL)
def test_a_drop_ends_the_connection(live: Live, protocol: str) -> None:
    """A drop without a code breaks the connection, and with it the other exchanges of HTTP/2."""
    server, url = live
    if protocol == "h2":
        server.hang_next("healthz")
    server.drop_next("healthz")

    async def use(connection: Connection) -> list[object]:
        exchanges = [get(connection) for _ in range(2 if protocol == "h2" else 1)]
        return await asyncio.gather(*exchanges, return_exceptions=True)

    assert all(isinstance(one, httpunk.HTTPunkError) for one in on_connection(url, use, protocol))


@pytest.mark.parametrize("protocol", ALL)
def test_half_a_body(live: Live, protocol: str) -> None:
    """A truncated response has its head and half of its body; then stream or connection breaks."""
    server, url = live
    server.truncate_next("healthz")

    async def use(connection: Connection) -> tuple[int, bytes, object]:
        response = await connection.request("GET", HEALTH, headers={"host": "localhost"})
        received = b""
        try:
            async for piece in response.aiter_bytes():
                received += piece
        except httpunk.HTTPunkError as error:
            return response.status, received, getattr(error, "error_code", None)
        return response.status, received, "complete"

    status, received, code = on_connection(url, use, protocol)
    assert (status, received) == (200, OK[1][: len(OK[1]) // 2])
    assert code == (H2Reason.INTERNAL_ERROR if protocol == "h2" else None)


@pytest.mark.parametrize("protocol", ALL)
def test_other_faults_are_the_same(live: Live, protocol: str) -> None:
    """Statuses, odd headers, slow bodies and heads, and informational responses all arrive."""
    server, url = live
    server.fail_next("healthz", 429, headers={"x-tea": b"gr\xfcn"})
    server.slow_next("healthz", 0.001)
    server.trickle_next("healthz", 0.001)
    server.inform_next("healthz", seconds=0.001)

    async def tea(connection: Connection) -> tuple[int, object]:
        response = await connection.request("GET", HEALTH, headers={"host": "localhost"})
        return response.status, response.headers.get("x-tea")

    assert on_connection(url, tea, protocol) == (429, b"gr\xfcn")
    assert [on_connection(url, get, protocol) for _ in range(3)] == [OK] * 3
    server.verify()


@pytest.mark.parametrize("protocol", ALL)
def test_down_and_up(live: Live, protocol: str) -> None:
    """While it is down no connection opens, and old ones break; then the same URL answers."""
    server, url = live

    async def use(connection: Connection) -> None:
        assert await get(connection) == OK
        server.go_down()
        with pytest.raises((httpunk.HTTPunkError, OSError)):
            await get(connection)

    on_connection(url, use, protocol)
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        on_connection(url, get, protocol)
    server.come_up()
    assert on_connection(url, get, protocol) == OK
