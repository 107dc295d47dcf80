"""The connections to one origin: shared by the exchanges, opened on demand, closed when idle."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from copy import copy
from functools import partial

from tinker._http.dialing import Dialer, DialFailed, HttpConnection, late
from tinker._http.http2 import STREAMS, Http2Connection
from tinker._http.messages import IDLE_SECONDS


class Pool:
    """Connections of one kind to one origin.

    An exchange takes the connection that had room last, so that those that are not needed fall idle. Where connections carry
    many exchanges, only as many are opened as those that wait can fill; how many that are, the first connection learns.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._usable: dict[HttpConnection, None] = {}  # which can take another exchange
        self._all: set[HttpConnection] = set()
        self._waiting: deque[asyncio.Future[HttpConnection]] = deque()
        self._dials: set[asyncio.Task[None]] = set()
        self._capacity = 0 if dialer.may_share else 1  # of a new connection; 0 while it is unknown, or the server wants nothing
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
        """Take a connection once one is free or open, in at most so many seconds. Raises ExchangeFailed."""
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

    # ----------------------------------------------------------------------------------------------------------------- opening

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
            failure = error if isinstance(error, DialFailed) else DialFailed(f"{type(error).__name__}: {error}")
            # Where other connections are being opened, a share of the waiting exchanges is for them.
            self._fail_waiting(failure, None if len(self._dials) == 1 else self._capacity or STREAMS)
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
        """Give the connection to waiting exchanges first, and its remaining capacity to new ones."""
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
        """Remove an exchange that waits no longer, and return a connection given to it at the same moment."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.give_back(waiter.result())

    # ----------------------------------------------------------------------------------------------------------------- closing

    def _close_idle(self) -> None:
        before = self._loop.time() - IDLE_SECONDS
        for connection in tuple(self._all):
            if not connection.used and (connection.is_closed or connection.idle_since < before):
                self._drop(connection)
        self._sweep = self._loop.call_later(IDLE_SECONDS / 3, self._close_idle) if self._all else None

    def _drop(self, connection: HttpConnection) -> None:
        """Close a connection that takes no more exchanges, once the last on it is over."""
        if not connection.used:
            self._all.discard(connection)
            self._usable.pop(connection, None)
            connection.close()


def _has_room(connection: HttpConnection) -> bool:
    return connection.used < connection.capacity and not connection.is_closed
