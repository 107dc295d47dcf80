"""Limits on requests in flight: counts, bytes, and the shared cool-down gate. Used on the loop
only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from tinker._basics.config import CONNECTIONS
from tinker._http.auth import CredentialSource
from tinker._http.messages import Purpose
from tinker._loop import Clock
from tinker.errors import APIStatusError, copy_error

# Submissions of samples at once while the server says that it is too much.
THROTTLED_SLOTS = 10
# The server counts as throttling for this long after a cool-down ended.
THROTTLED_SECONDS = 10.0
# A pause after a 429 without Retry-After, before jitter. A larger request needs more room on the
# server.
SMALL_COOL_DOWN_SECONDS, LARGE_COOL_DOWN_SECONDS = 1.0, 5.0
_LARGE_NBYTES = 128 * 1024
_JITTER_SECONDS = 1.0


@lru_cache(maxsize=1)
def _spare_descriptors() -> int:
    """Return half of the process's limit of open files; two kinds of exchanges may be at their
    limits at once.
    """
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(16, soft // 2 - 32)
    except (ImportError, OSError, ValueError):
        return 256


def open_slots(connections: Mapping[str, int]) -> Mapping[Purpose, asyncio.Semaphore]:
    """Return how many exchanges of each purpose there may be at once, as the settings say; some
    purposes share.
    """
    spare = _spare_descriptors()
    slots = {
        name: asyncio.Semaphore(min(spare, count))
        for name, count in {**CONNECTIONS, **connections}.items()
    }
    return {purpose: slots[purpose.pool_name] for purpose in Purpose}


class Budget:
    """A shared budget of requests or bytes; first come, first served.

    A request is admitted while anything is left, even if it needs more than that, so that a request
    larger than the whole budget is not starved.
    """

    def __init__(self, capacity: int) -> None:
        self._left = capacity
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()

    def take(self, amount: int = 1) -> Holding:
        """Hold ``amount`` while the block runs."""
        return Holding(self, amount)

    def try_acquire(self, amount: int = 1) -> bool:
        """Take ``amount`` now if no request is waiting. Return it with :meth:`release`."""
        if self._left > 0 and not self._waiters:
            self._left -= amount
            return True
        return False

    async def acquire(self, amount: int = 1) -> None:
        """Wait for the caller's turn, then take ``amount``. Return it with :meth:`release`."""
        if self.try_acquire(amount):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((waiter, amount))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(amount)  # it was admitted and cancelled at once
            raise

    def release(self, amount: int = 1) -> None:
        """Return ``amount`` and admit waiting requests at once, so that later requests cannot
        overtake them.
        """
        self._left += amount
        while self._left > 0 and self._waiters:
            waiter, wanted = self._waiters.popleft()
            if not waiter.done():
                self._left -= wanted
                waiter.set_result(None)


class Holding(msgspec.Struct):
    """A part of a budget, held by a block or by an attempt."""

    _budget: Budget
    _amount: int

    async def enter(self) -> None:
        """Wait for it, and hold it."""
        await self._budget.acquire(self._amount)

    def leave(self, error: BaseException | None = None, pause_seconds: float | None = None) -> None:
        """Release it."""
        self._budget.release(self._amount)

    async def __aenter__(self) -> None:
        await self.enter()

    async def __aexit__(self, *_: object) -> None:
        self.leave()


class CoolDown(msgspec.Struct, weakref=True, eq=False):
    """A gate that closes for a while after a 429 response. All requests that share it wait."""

    clock: Clock
    _until: float = 0.0
    _why: APIStatusError | None = None

    def close_for(self, why: APIStatusError, seconds: float) -> None:
        """Keep the gate closed for at least this long from now, unless ``why`` only reports that it
        is closed.
        """
        if self._why is not None and why.__cause__ is self._why:
            return
        self._until = max(self._until, self.clock.monotonic() + seconds)
        self._why = copy_error(why)  # without the traceback, which holds the client

    @property
    def has_closed(self) -> bool:
        """Return whether the gate was ever closed."""
        return self._until > 0

    @property
    def throttled(self) -> bool:
        """Return whether the gate is closed or was so a moment ago."""
        return self._until > 0 and self.clock.monotonic() < self._until + THROTTLED_SECONDS

    async def wait_open(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Wait until the gate is open, with the caller's ``sleep`` function."""
        while (left := self._until - self.clock.monotonic()) > 0:
            await sleep(left)

    def check(self) -> None:
        """Raise the error that closed the gate, with the remaining seconds, unless the gate is
        open.
        """
        left = self._until - self.clock.monotonic()
        if left > 0 and self._why is not None:
            error = copy_error(self._why)
            error.retry_after = left
            raise error from self._why


# A gate is dropped with the last session that has it.
_cool_downs: WeakValueDictionary[tuple[str, CredentialSource | None], CoolDown] = (
    WeakValueDictionary()
)


def cool_down_for(base_url: str, credential: CredentialSource | None, clock: Clock) -> CoolDown:
    """Return the process's gate for one server and one credential. Other credentials and servers
    are not slowed down.
    """
    key = (base_url, credential)
    gate = _cool_downs.get(key)
    if gate is None or gate.clock != clock:
        gate = _cool_downs[key] = CoolDown(clock)
    return gate


class Limits(msgspec.Struct, frozen=True):
    """The limits of one session, sized by the server's configuration."""

    samples: AbstractAsyncContextManager[object]  # of a sample until its result is there
    dispatch: Budget
    throttled_dispatch: Budget
    prompt_nbytes: Budget
    training_nbytes: Budget
    result_nbytes: Budget
    cool_down: CoolDown
    sleep: Callable[[float], Awaitable[None]]
    fails_fast: bool = False


class Admission(Protocol):
    """The resources that each attempt of a request holds."""

    async def enter(self) -> None:
        """Wait for the resources for one attempt, and acquire them."""
        ...

    def leave(self, error: BaseException | None, pause_seconds: float | None = None) -> None:
        """Release the resources after an attempt that ended with ``error``, a 429 if others have to
        wait for so long.
        """
        ...


class GuardedAdmission(Admission, Protocol):
    """An admission that may also end the wait between two attempts."""

    async def sleep(self, sleep: Callable[[float], Awaitable[None]], seconds: float) -> None:
        """Sleep until the next attempt."""
        ...


class SampleAdmission(msgspec.Struct):
    """The resources of one attempt to submit a sample: a slot and the prompt's bytes. Both count
    for more while throttled.
    """

    _limits: Limits
    _nbytes: int
    _held: list[tuple[Budget, int]] = []

    def try_enter(self) -> bool:
        """Acquire the resources for one attempt if they are free now; otherwise acquire nothing."""
        limits, nbytes = self._limits, self._nbytes
        if limits.cool_down.throttled or not limits.dispatch.try_acquire():
            return False
        if not limits.prompt_nbytes.try_acquire(nbytes):
            limits.dispatch.release()
            return False
        self._held += ((limits.dispatch, 1), (limits.prompt_nbytes, nbytes))
        return True

    async def enter(self) -> None:
        if self.try_enter():
            return
        limits, gate = self._limits, self._limits.cool_down
        try:
            await self._take(limits.dispatch, 1)
            if limits.fails_fast:
                gate.check()
            if gate.has_closed:
                await gate.wait_open(limits.sleep)
            if gate.throttled:
                await self._take(limits.throttled_dispatch, 1)
                await self._take(limits.prompt_nbytes, 20 * self._nbytes)
            else:
                await self._take(limits.prompt_nbytes, self._nbytes)
        except BaseException:
            self.leave()
            raise

    def leave(self, error: BaseException | None = None, pause_seconds: float | None = None) -> None:
        """Release the resources; also early, when the server has accepted the request but the
        response takes longer.
        """
        while self._held:
            budget, amount = self._held.pop()
            budget.release(amount)
        if pause_seconds is not None and isinstance(error, APIStatusError):
            self._close_gate(error, pause_seconds)

    def _close_gate(self, error: APIStatusError, seconds: float) -> None:
        """Close the gate that all samples under one key share."""
        if error.retry_after is None:
            seconds = min(seconds, _JITTER_SECONDS)
            seconds += (
                LARGE_COOL_DOWN_SECONDS if self._nbytes > _LARGE_NBYTES else SMALL_COOL_DOWN_SECONDS
            )
        self._limits.cool_down.close_for(error, seconds)

    async def _take(self, budget: Budget, amount: int) -> None:
        if not budget.try_acquire(amount):
            await budget.acquire(amount)
        self._held.append((budget, amount))
