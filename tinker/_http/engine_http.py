"""The engine for servers: HTTP/1.1 and HTTP/2 over connections of our own, with the protocols of
httpunk.

The connections to one origin are shared by the exchanges, opened on demand, and closed when idle.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Mapping
from contextvars import Context
from copy import copy
from functools import lru_cache, partial
from importlib import metadata
from types import MappingProxyType
from urllib.parse import urlsplit

from tinker._config import Proxies, Trust
from tinker._http.dialing import BOTH, Dialer, DialFailed, HttpConnection, late
from tinker._http.exchange import Exchange
from tinker._http.http2 import STREAMS, Http2Connection
from tinker._http.limits import open_slots
from tinker._http.messages import (
    IDLE_SECONDS,
    ConnectionFacts,
    ExchangeFailed,
    PreparedRequest,
    Purpose,
    RawResponse,
)
from tinker._http.trust import describe_connection
from tinker._http.unpacking import unpack
from tinker._wire import INLINE_NBYTES
from tinker.errors import ClientClosedError

# -------------------------------------------------------------------- the connections to one origin


class Pool:
    """Connections of one kind to one origin.

    An exchange takes the connection that had room last, so that those that are not needed fall
    idle. Where connections carry many exchanges, only as many are opened as those that wait can
    fill; how many that are, the first connection learns.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._usable: dict[HttpConnection, None] = {}  # which can take another exchange
        self._all: set[HttpConnection] = set()
        self._waiting: deque[asyncio.Future[HttpConnection]] = deque()
        self._dials: set[asyncio.Task[None]] = set()
        # of a new connection; 0 while it is unknown, or the server wants nothing
        self._capacity = 0 if dialer.may_share else 1
        self._sweep: asyncio.TimerHandle | None = None

    def take(self) -> HttpConnection | None:
        """Take a connection that is open; None if a new one is needed."""
        while self._usable:
            connection = next(reversed(self._usable))
            if _has_room(connection):
                connection.used += 1
                return connection
            del self._usable[connection]
            if connection.is_closed:
                self._drop(connection)
        return None

    async def wait(self, seconds: float) -> HttpConnection:
        """Take a connection once one is free or open, in at most so many seconds. Raises
        ExchangeFailed.
        """
        waiter: asyncio.Future[HttpConnection] = self._loop.create_future()
        self._waiting.append(waiter)
        self._dial_enough()
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except BaseException as error:
            self._abandon(waiter)
            if isinstance(error, TimeoutError):
                raise late(self._dialer.where, seconds) from None
            raise

    def give_back(self, connection: HttpConnection) -> None:
        """Return a connection after an exchange."""
        connection.used -= 1
        connection.idle_since = self._loop.time()
        if connection.is_closed:
            self._drop(connection)
        else:
            self._offer(connection)

    def close(self) -> None:
        """Close every connection, and fail the waiting exchanges."""
        for dial in self._dials:
            dial.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        self._fail_waiting(DialFailed("the client was closed"))
        for connection in tuple(self._all):
            connection.close()
        self._all.clear()
        self._usable.clear()

    @property
    def connections(self) -> frozenset[HttpConnection]:
        """Return the open connections."""
        return frozenset(self._all)

    # -------------------------------------------------------------------------------------- opening

    def _dial_enough(self) -> None:
        if self._capacity:
            wanted = -(-len(self._waiting) // self._capacity)
        else:
            wanted = 0 if any(not connection.is_closed for connection in self._all) else 1
        while len(self._dials) < wanted:
            self._dials.add(self._loop.create_task(self._dial(), name="connect", context=Context()))

    async def _dial(self) -> None:
        current = asyncio.current_task()
        assert current is not None
        try:
            connection = await self._dialer.dial()
        except Exception as error:  # noqa: BLE001 - the waiting exchanges get any error
            failure = (
                error
                if isinstance(error, DialFailed)
                else DialFailed(f"{type(error).__name__}: {error}")
            )
            # Where other connections are being opened, a share of the waiting exchanges is for
            # them.
            self._fail_waiting(
                failure, None if len(self._dials) == 1 else self._capacity or STREAMS
            )
            return
        finally:
            self._dials.discard(current)
        self._all.add(connection)
        connection.idle_since = self._loop.time()
        if self._capacity and not connection.is_settled:
            connection.capacity = self._capacity
        if isinstance(connection, Http2Connection):
            connection.when_settled = partial(self._note_capacity, connection)
        self._note_capacity(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_SECONDS / 3, self._close_idle)

    def _note_capacity(self, connection: HttpConnection) -> None:
        """Use a connection's capacity, and open more connections if that is not enough."""
        if connection.is_settled:
            self._capacity = connection.capacity
        self._offer(connection)
        if self._waiting:
            self._dial_enough()

    def _offer(self, connection: HttpConnection) -> None:
        """Give the connection to waiting exchanges first, and its remaining
        capacity to new ones.
        """
        while self._waiting and _has_room(connection):
            waiter = self._waiting.popleft()
            if not waiter.done():
                connection.used += 1
                waiter.set_result(connection)
        if _has_room(connection):
            self._usable[connection] = None

    def _fail_waiting(self, failure: DialFailed, count: int | None = None) -> None:
        """Fail the exchanges that have waited longest for a connection that could not be made."""
        for _ in range(len(self._waiting) if count is None else min(count, len(self._waiting))):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(copy(failure))

    def _abandon(self, waiter: asyncio.Future[HttpConnection]) -> None:
        """Remove an exchange that waits no longer, and return a connection given to it at the same
        moment.
        """
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.give_back(waiter.result())

    # -------------------------------------------------------------------------------------- closing

    def _close_idle(self) -> None:
        before = self._loop.time() - IDLE_SECONDS
        for connection in tuple(self._all):
            if not connection.used and (connection.is_closed or connection.idle_since < before):
                self._drop(connection)
        self._sweep = (
            self._loop.call_later(IDLE_SECONDS / 3, self._close_idle) if self._all else None
        )

    def _drop(self, connection: HttpConnection) -> None:
        """Close a connection that takes no more exchanges, once the last on it is over."""
        if not connection.used:
            self._all.discard(connection)
            self._usable.pop(connection, None)
            connection.close()


def _has_room(connection: HttpConnection) -> bool:
    return connection.used < connection.capacity and not connection.is_closed


# --------------------------------------------------------------------------------------- the engine

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class _BodyClass(enum.Enum):
    """The kind of a request's body: requests of one class share connections.

    Nothing small waits behind a large body. Training data goes over HTTP/1.1: front ends let an
    HTTP/2 stream send 64 KB ahead, which limits it to 64 KB in each round trip.
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
            pool = self._pools[key] = Pool(
                Dialer(origin, proxy, self._proxy_headers, self._trust, body_class.protocols)
            )
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
