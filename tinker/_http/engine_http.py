"""The engine for servers: HTTP/1.1 and HTTP/2 over connections of our own, with the protocols of httpunk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import urlsplit

from tinker._config import CONNECTIONS, Proxies
from tinker._http.closing import check_open
from tinker._http.dialing import Connection, Dialer
from tinker._http.exchange import Exchange
from tinker._http.limits import Budget
from tinker._http.messages import ExchangeFailed, PreparedRequest, Purpose, RawResponse
from tinker._http.pool import Pool
from tinker._http.trust import Trust
from tinker._http.unpacking import unpack
from tinker._wire import INLINE_NBYTES

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class HttpEngine:
    """Connections to servers, opened on first use. A large body has connections of its own, so that nothing waits behind it."""

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
        spare = _spare_descriptors()
        slots = {name: Budget(min(spare, count)) for name, count in {**CONNECTIONS, **connections}.items()}
        self._slots = {purpose: slots[purpose.pool.pool_name] for purpose in Purpose}
        self._pools: dict[tuple[str, str | None, bool], Pool] = {}
        self._closed = False

    async def send(self, request: PreparedRequest) -> RawResponse:
        slots = self._slots[request.purpose]
        if not slots.try_acquire():
            await slots.acquire()
        try:
            return await self._exchange(request)
        except ValueError as error:  # a URL or a header that cannot be sent
            failure: Exception = ExchangeFailed(f"ValueError: {error}")
        except (ExchangeFailed, OSError) as error:  # of the way, or of the body
            failure = error.with_traceback(None)  # whose frames have the query, which may be secret
        finally:
            slots.release()
        check_open(self._closed)
        raise failure

    async def _exchange(self, request: PreparedRequest) -> RawResponse:
        check_open(self._closed)
        origin, path = _split(request.url)
        pool = self._pool(origin, request)
        loop, is_sent = asyncio.get_running_loop(), False
        while not is_sent:
            connection = pool.take() or await pool.wait(request.connect_seconds)
            exchange = Exchange(request, loop)
            try:
                is_sent = connection.start(exchange, path)
                if is_sent:
                    await exchange.receive()
            finally:
                exchange.leave()
                connection.leave(exchange)
                pool.give_back(connection)
        headers = exchange.headers
        assert headers is not None
        if exchange.is_streamed:
            return RawResponse(request, exchange.status, headers, b"")
        encoding = headers.get("content-encoding")
        content = exchange.content if encoding is None else await unpack(exchange.content, encoding)
        return RawResponse(request, exchange.status, headers, content)

    def _pool(self, origin: str, request: PreparedRequest) -> Pool:
        is_large = request.nbytes > INLINE_NBYTES
        proxy = None if self._proxies is None else self._proxies.of(request.url)
        key = (origin, proxy, is_large)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(Dialer(origin, proxy, self._proxy_headers, self._trust))
        return pool

    async def aclose(self) -> None:
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    @property
    def connections(self) -> list[Connection]:
        """Return the connections that are open."""
        return [connection for pool in self._pools.values() for connection in pool.connections]


@lru_cache(maxsize=1)
def _spare_descriptors() -> int:
    """Return half of what the process may have open; two kinds of exchanges may be at their limits at once."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(16, soft // 2 - 32)
    except (ImportError, OSError, ValueError):
        return 256


@lru_cache(maxsize=512)
def _split(url: str) -> tuple[str, str]:
    """Return the origin of a URL, and the rest, which is sent as it is."""
    at = url.find("/", url.find("://") + 3)
    if at < 0:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}", f"/?{parts.query}" if parts.query else "/"
    return url[:at], url[at:].partition("#")[0]
