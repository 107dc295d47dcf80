"""The aiohttp engine: one pool of connections for each purpose."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import msgspec

from tinker._config import CONNECTIONS, Proxies
from tinker._http.closing import check_open
from tinker._http.messages import CONNECT_SECONDS, PreparedRequest, Purpose, RawResponse
from tinker._http.phase import ANSWER_SECONDS, MAX_ANSWER_NBYTES, Phase, extend
from tinker._http.unpacking import ACCEPTED_ENCODINGS, unpack
from tinker._wire import INLINE_NBYTES, Piece

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL


class _Pool(msgspec.Struct, frozen=True):
    """An aiohttp session and its slots for exchanges. Time spent waiting for a slot does not count as server time."""

    session: aiohttp.ClientSession
    slots: asyncio.Semaphore


class AiohttpEngine:
    """One pool for each purpose, opened on first use."""

    def __init__(
        self,
        proxies: Proxies | None = None,
        *,
        connections: Mapping[str, int] = MappingProxyType({}),
        proxy_headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._connections = {**CONNECTIONS, **connections}
        self._proxy_headers = proxy_headers
        self._proxies = None if proxies is None or proxies.is_empty else proxies
        self._pools: dict[Purpose, _Pool] = {}
        self._limits: set[asyncio.Timeout] = set()  # of the responses under way
        self._closed = False

    async def send(self, request: PreparedRequest) -> RawResponse:
        phase = Phase(request)
        try:
            return await self._exchange(request, phase)
        except Exception as error:  # noqa: BLE001 - whatever the engine makes of what a server sends
            failure = phase.failure(error)
        check_open(self._closed)
        raise failure  # here, so that it is without the engine's error and frames, which hold the request's headers

    async def _exchange(self, request: PreparedRequest, phase: Phase) -> RawResponse:
        pool = self._pools.get(request.purpose.pool) or self._open(request.purpose.pool)
        proxy = None if self._proxies is None else self._proxies.of(request.url)
        headers, tunnel_headers = (request.headers, None) if proxy is None else _headers(request, proxy, self._proxy_headers)
        async with (
            pool.slots,
            asyncio.timeout(request.connect_seconds + request.silence_seconds) as limit,
            pool.session.request(
                request.method,
                _url(request.url),
                data=_payload(request, limit),
                headers=headers,
                allow_redirects=False,
                proxy=None if proxy is None else _proxy_url(proxy),
                proxy_headers=tunnel_headers,
                timeout=_timeout(request.silence_seconds),
            ) as response,
        ):
            phase.has_begun = True
            received = cast("Mapping[str, str]", response.headers)
            self._limits.add(limit)
            try:
                if (receive := request.receiver_of(response.status)) is not None:
                    await receive(received, _read_pieces(response, request, limit))
                    return RawResponse(request, response.status, received, b"")
                _limit(limit, ANSWER_SECONDS)
                body = await _read(response)
            finally:
                self._limits.discard(limit)
        content = await unpack(body, received.get("Content-Encoding", ""))
        return RawResponse(request, response.status, received, content)

    def _open(self, purpose: Purpose) -> _Pool:
        """Open the pool of a purpose. Raises ClientClosedError after the client was closed."""
        import aiohttp

        check_open(self._closed)
        connections = min(self._connections[purpose.pool_name], _spare_descriptors())
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=1 << 20,
            auto_decompress=False,
            headers={"Accept-Encoding": ACCEPTED_ENCODINGS},
        )
        pool = self._pools[purpose] = _Pool(session, asyncio.Semaphore(connections))
        return pool

    async def aclose(self) -> None:
        self._closed = True
        for limit in self._limits:
            _limit(limit, 0)  # closed connections alone leave who reads a body of unknown length waiting
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.session.close()


def _payload(request: PreparedRequest, limit: asyncio.Timeout) -> Piece | AsyncIterator[Piece] | None:
    if not request.body:
        return None
    return request.body[0] if len(request.body) == 1 and request.nbytes <= INLINE_NBYTES else _pieces(request, limit)


async def _pieces(request: PreparedRequest, limit: asyncio.Timeout) -> AsyncIterator[Piece]:
    """Return the body in pieces. The server must read each piece in time, or the exchange ends."""
    for piece in request.body:
        _limit(limit, request.silence_seconds)
        yield piece
    _limit(limit, request.silence_seconds)  # for the whole head of the response, so that one that trickles in ends as well


def _limit(limit: asyncio.Timeout, seconds: float) -> None:
    """End the exchange after this many seconds, unless it is already over, for example after an early response."""
    with contextlib.suppress(RuntimeError):
        limit.reschedule(asyncio.get_running_loop().time() + seconds)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the whole body, as it was sent. A body longer than the limit fails the exchange."""
    if (response.content_length or 0) > MAX_ANSWER_NBYTES:
        raise ValueError(f"the response is larger than {MAX_ANSWER_NBYTES} bytes")
    if response.content_length is not None:
        return await response.read()
    received = bytearray()
    async for piece in response.content.iter_any():
        extend(received, piece)
    return bytes(received)


async def _read_pieces(
    response: aiohttp.ClientResponse, request: PreparedRequest, limit: asyncio.Timeout
) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. There is no total time limit, only a limit for each piece."""
    _limit(limit, request.silence_seconds)
    async for piece in response.content.iter_any():
        yield piece
        _limit(limit, request.silence_seconds)


def _headers(
    request: PreparedRequest, proxy: str, others: Mapping[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str] | None]:
    """Return the headers of the exchange and of the proxy tunnel, where the proxy's password is sent."""
    read = {**(_credential(proxy) or {}), **others}
    if not read or request.url.startswith("https:"):
        return request.headers, read or None
    return {**request.headers, **read}, None


@lru_cache
def _proxy_url(proxy: str) -> URL:
    """Return the proxy without user name and password, because errors show the address."""
    return _url(proxy).with_user(None)


@lru_cache
def _credential(proxy: str) -> Mapping[str, str] | None:
    url = _url(proxy)
    if url.user is None:
        return None
    basic = base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {basic}"}


@lru_cache(maxsize=512)
def _url(url: str) -> URL:
    """Parse a URL once: a client asks few different ones. It is encoded already; `:` and `/` in ids stay as they are."""
    from yarl import URL

    return URL(url, encoded=True)


@lru_cache
def _timeout(silence_seconds: float) -> aiohttp.ClientTimeout:
    import aiohttp

    connect = min(CONNECT_SECONDS, silence_seconds)
    return aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=silence_seconds)


@lru_cache(maxsize=1)
def _spare_descriptors() -> int:
    """Return half of what the process may have open; two pools may be full at once."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(16, soft // 2 - 32)
    except (ImportError, OSError, ValueError):
        return 256
