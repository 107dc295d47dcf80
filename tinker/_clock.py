"""Time, sleep and randomness as one value, so that tests need not wait."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol

import msgspec


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> object:
        """Do not make the call."""
        ...


def _call_later(seconds: float, function: Callable[[], object]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, function)


def get_waiting_loop() -> asyncio.AbstractEventLoop:
    """Return the loop in which somebody awaits. RuntimeError where it is not one of asyncio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "await needs a loop of asyncio; from trio: await trio.to_thread.run_sync(future.result)"
        ) from None


class Clock(msgspec.Struct, frozen=True):
    """``monotonic`` in seconds, ``wall`` in seconds since 1970, ``random`` uniform in [0, 1).

    Requests ``sleep``. ``call_later`` calls a function on the running loop: for what does not
    belong to a request (heartbeats, refreshes), and for limits that something else is expected to
    keep.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    call_later: Callable[[float, Callable[[], object]], Timer] = _call_later

    async def timer(self, seconds: float) -> None:
        """Wait as :attr:`call_later` does."""
        over = asyncio.Event()
        timer = self.call_later(seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def deadline(self, seconds: float) -> Deadline:
        """Return a block that ends with TimeoutError after so many seconds; as ``asyncio.timeout``,
        on this clock.
        """
        return Deadline(self, seconds)


class Deadline:
    """A block that ends with TimeoutError at a time that can be moved; see
    :meth:`Clock.deadline`.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._ends = clock.monotonic() + seconds
        self._left: float | None = None  # of its own time, while it is held
        self._why = ""
        self._is_over = False  # the block has ended, or is about to

    async def __aenter__(self) -> Deadline:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelled_before = task, task.cancelling()
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._timer.cancel()
        was_over, self._is_over = self._is_over, True
        task = self._task
        # who keeps the deadline, as a recorded request may, must not keep the operation and its
        # future
        del self._task
        if (
            was_over
            and task.uncancel() <= self._cancelled_before
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError(*filter(None, [self._why])) from error

    def extend(self, seconds: float) -> None:
        """Give the block so many seconds from now; not fewer than it had."""
        self._ends = max(self._ends, self._clock.monotonic() + seconds)
        self._left = None if self._left is None else max(self._left, seconds)

    def hold(self, seconds: float, why: str) -> None:
        """Stop counting the block's own time, for so many seconds at most; if they are over,
        TimeoutError says ``why``.
        """
        if self._left is None and not self._is_over:
            now = self._clock.monotonic()
            self._left, self._ends, self._why = self._ends - now, now + seconds, why

    def release(self) -> None:
        """Count the block's own time on, from where it was held."""
        if self._left is not None and not self._is_over:
            self._ends, self._left, self._why = self._clock.monotonic() + self._left, None, ""
            self._timer.cancel()
            self._check()

    def expire(self) -> None:
        """End the block now."""
        if not self._is_over:
            self._is_over = True
            self._task.cancel()

    def _check(self) -> None:
        """End the block if its time is over, else look again when it would be."""
        if (left := self._ends - self._clock.monotonic()) > 0:
            self._timer = self._clock.call_later(left, self._check)
        else:
            self.expire()
