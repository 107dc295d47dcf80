"""The engine for servers: HTTP/1.1 and HTTP/2 over connections of our own, with the protocols of httpunk."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from types import MappingProxyType
from urllib.parse import urlsplit

from tinker._config import Proxies, Trust
from tinker._http.dialing import BOTH, Dialer, HttpConnection
from tinker._http.exchange import Exchange
from tinker._http.limits import open_slots
from tinker._http.messages import ConnectionFacts, ExchangeFailed, PreparedRequest, Purpose, RawResponse
from tinker._http.pool import Pool
from tinker._http.trust import describe_connection
from tinker._http.unpacking import unpack
from tinker._wire import INLINE_NBYTES
from tinker.errors import ClientClosedError

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class _BodyClass(enum.Enum):
    """The kind of a request's body: requests of one class share connections.

    Nothing small waits behind a large body. Training data goes over HTTP/1.1: front ends let an HTTP/2 stream send 64 KB ahead,
    which limits it to 64 KB in each round trip.
    """

    SMALL = enum.auto()
    LARGE = enum.auto()
    DATA = enum.auto()

    @property
    def protocols(self) -> tuple[str, ...]:
        """Return the application protocols to offer, best first."""
        return ("http/1.1",) if self is _BodyClass.DATA else BOTH


class HttpEngine:
    """Connections to servers, opened on first use."""

    def __init__(
        self,
        proxies: Proxies | None = None,
        *,
        connections: Mapping[str, int] = MappingProxyType({}),
        proxy_headers: Mapping[str, str] = _NO_HEADERS,
        trust: Trust | None = None,
    ) -> None:
        self._proxies = None if proxies is None or proxies.is_empty else proxies
        self._proxy_headers = proxy_headers
        self._trust = trust or Trust()
        self._slots = open_slots(connections)
        self._pools: dict[tuple[str, str | None, _BodyClass], Pool] = {}
        self._closed = False

    async def send(self, request: PreparedRequest) -> RawResponse:
        try:
            pool, loop = self._pool(request), asyncio.get_running_loop()
            async with self._slots[request.purpose]:
                while True:
                    self._check_open()
                    connection = pool.take() or await pool.wait(request.connect_seconds)
                    exchange = Exchange(request, loop)
                    try:
                        # No variable of this frame may hold the query.
                        if connection.start(exchange, _split(request.url)[1]):
                            await exchange.receive()
                            break
                    finally:
                        exchange.leave()
                        connection.leave(exchange)
                        pool.give_back(connection)
                return await _read_response(exchange)
        except ValueError as error:  # a URL or a header that cannot be sent
            failure: Exception = ExchangeFailed(f"ValueError: {error}")
        except (ExchangeFailed, OSError) as error:  # of the way, or of the body
            failure = error.with_traceback(None)  # whose frames have the query, which may be secret
        self._check_open()
        raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")

    def _pool(self, request: PreparedRequest) -> Pool:
        origin, body_class = _split(request.url)[0], _class_of(request)
        proxy = None if self._proxies is None else self._proxies.of(request.url)
        key = (origin, proxy, body_class)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(Dialer(origin, proxy, self._proxy_headers, self._trust, body_class.protocols))
        return pool

    async def aclose(self) -> None:
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    @property
    def connections(self) -> list[HttpConnection]:
        """Return the connections that are open."""
        return [connection for pool in self._pools.values() for connection in pool.connections]

    def describe(self) -> list[ConnectionFacts]:
        engine = f"httpunk {metadata.version('httpunk')}"
        facts = [
            describe_connection(engine, connection.version, connection.secured, proxy)
            for (_, proxy, _), pool in self._pools.items()
            for connection in pool.connections
        ]
        return list(dict.fromkeys(facts))


async def _read_response(exchange: Exchange) -> RawResponse:
    headers = exchange.headers
    assert headers is not None
    if exchange.is_streamed:
        return RawResponse(exchange.request, exchange.status, headers, b"")
    content, encoding = exchange.content, headers.get("content-encoding")
    if encoding is not None:
        content = await unpack(content, encoding, exchange.request.limit_of(exchange.status))
    return RawResponse(exchange.request, exchange.status, headers, content)


def _class_of(request: PreparedRequest) -> _BodyClass:
    if request.nbytes <= INLINE_NBYTES:
        return _BodyClass.SMALL
    return _BodyClass.DATA if request.purpose is Purpose.UPLOAD else _BodyClass.LARGE


@lru_cache(maxsize=512)
def _split(url: str) -> tuple[str, str]:
    """Return the origin of a URL, and the rest, which is sent as it is."""
    at = url.find("/", url.find("://") + 3)
    if at < 0:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}", f"/?{parts.query}" if parts.query else "/"
    return url[:at], url[at:].partition("#")[0]
