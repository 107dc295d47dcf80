"""The connections to one origin: shared by the exchanges, opened as they are needed, closed when nobody needs them."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context

from tinker._http.dialing import Connection, Dialer, DialFailed, late
from tinker._http.http2 import STREAMS
from tinker._http.messages import IDLE_SECONDS


class Pool:
    """Connections of one kind to one origin.

    An exchange takes the connection that was used last, so that those that are not needed fall idle. Where connections carry
    many exchanges, only as many are opened as those that wait can fill.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._usable: list[Connection] = []  # which can take another exchange
        self._all: set[Connection] = set()
        self._waiting: deque[asyncio.Future[Connection]] = deque()
        self._dials: set[asyncio.Task[None]] = set()
        # How many exchanges a new connection can take, once it is known.
        self._capacity: int | None = None if dialer.is_secure else 1
        self._sweep: asyncio.TimerHandle | None = None

    def take(self) -> Connection | None:
        """Take a connection that is open; None if a new one is needed."""
        while self._usable:
            connection = self._usable[-1]
            if not connection.is_closed and connection.used < connection.capacity:
                connection.used += 1
                if connection.used >= connection.capacity:
                    self._usable.pop()
                return connection
            self._usable.pop()
            if connection.is_closed:
                self._drop(connection)
        return None

    async def wait(self, seconds: float) -> Connection:
        """Take a connection once one is free or open, in at most so many seconds. Raises ExchangeFailed."""
        waiter: asyncio.Future[Connection] = self._loop.create_future()
        self._waiting.append(waiter)
        self._dial_enough()
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except TimeoutError:
            self._abandon(waiter)
            raise late(self._dialer.where, seconds).for_exchange() from None
        except BaseException:
            self._abandon(waiter)
            raise

    def give_back(self, connection: Connection) -> None:
        """Return a connection after an exchange."""
        was_full = connection.used >= connection.capacity
        connection.used -= 1
        if connection.is_closed:
            self._drop(connection)
        elif was_full and connection.used < connection.capacity:
            self._offer(connection)
        connection.idle_since = self._loop.time()

    def close(self) -> None:
        """Close every connection, and fail who waits for one."""
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
    def connections(self) -> frozenset[Connection]:
        """Return those that are open."""
        return frozenset(self._all)

    # ----------------------------------------------------------------------------------------------------------------- opening

    def _dial_enough(self) -> None:
        wanted = 1 if self._capacity is None else -(-len(self._waiting) // self._capacity)
        while len(self._dials) < wanted:
            dial = self._loop.create_task(self._dial(), name="connect", context=Context())
            self._dials.add(dial)
            dial.add_done_callback(self._dials.discard)

    async def _dial(self) -> None:
        try:
            connection = await self._dialer.dial()
        except Exception as error:  # noqa: BLE001 - those who wait are told whatever it is
            failure = error if isinstance(error, DialFailed) else DialFailed(f"{type(error).__name__}: {error}")
            self._fail_waiting(failure, self._capacity or STREAMS)
            return
        self._capacity = connection.capacity
        self._all.add(connection)
        connection.idle_since = self._loop.time()
        self._offer(connection)
        self._loop.call_soon(self._dial_enough)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_SECONDS / 3, self._close_idle)

    def _offer(self, connection: Connection) -> None:
        """Let those that wait have the connection, the rest of it everybody."""
        while self._waiting and connection.used < connection.capacity:
            waiter = self._waiting.popleft()
            if not waiter.done():
                connection.used += 1
                waiter.set_result(connection)
        if connection.used < connection.capacity:
            self._usable.append(connection)

    def _fail_waiting(self, failure: DialFailed, count: int | None = None) -> None:
        """Fail those that have waited longest for a connection that could not be made."""
        for _ in range(len(self._waiting) if count is None else min(count, len(self._waiting))):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(failure.for_exchange())

    def _abandon(self, waiter: asyncio.Future[Connection]) -> None:
        """Forget who waits no longer, and return what was given in the same moment."""
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
        self._usable = [connection for connection in self._usable if not connection.is_closed]
        self._sweep = self._loop.call_later(IDLE_SECONDS / 3, self._close_idle) if self._all else None

    def _drop(self, connection: Connection) -> None:
        """Close a connection that takes no more exchanges, once the last on it is over."""
        if not connection.used:
            self._all.discard(connection)
            connection.close()
