"""Simulated time that advances only while all clients wait, so that minutes of retries take
milliseconds.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import attrs

from tinker._loop import Clock

# Turns of the loop without anything to do before time may jump; a chain of callbacks inside a
# client is shorter.
_CALM_TURNS = 25
_LOOK_AGAIN_SECONDS = 0.0005  # real ones, while an exchange is under way
_PATIENCE_SECONDS = 10.0  # real ones, until a client begins to sleep


@attrs.define(order=True)
class _Sleeper:
    due: float
    number: int
    urgent: bool = attrs.field(order=False)
    wake: Callable[[], object] = attrs.field(order=False)
    loop: asyncio.AbstractEventLoop = attrs.field(order=False)
    forget: Callable[[_Sleeper], None] = attrs.field(order=False)

    is_cancelled: bool = attrs.field(default=False, init=False, order=False)

    def cancel(self) -> None:
        """Do not wake it."""
        self.is_cancelled = True
        self.forget(self)

    def end(self) -> None:
        """Wake it, unless it was cancelled meanwhile."""
        if not self.is_cancelled:
            self.wake()


class SteppedClock:
    """Simulated clock for ``ServiceClient(clock=stepped.clock())``.

    A sleep before a retry or a poll advances the clock: when no exchange is running and nothing
    else happens, time jumps to the end of the earliest such sleep. Heartbeats, refreshes and time
    limits do not advance the clock. They come when such jumps or :meth:`advance` reach their time.
    Sleepers wake one at a time, in the order of their times.

    ``random`` is the client's random number, so that delays are deterministic. ``slept`` lists the
    sleeps before retries and polls.

    >>> import asyncio
    >>> clock = SteppedClock()
    >>> asyncio.run(clock.sleep(9))
    >>> clock.now
    1009.0
    """

    def __init__(self, *, random: float = 0.99) -> None:
        self.now: float = 1000.0
        self.slept: list[float] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._sleepers: list[_Sleeper] = []
        self._jumping: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._busy = 0
        self._clock = Clock(
            monotonic=self,
            wall=self,
            sleep=self.sleep,
            random=lambda: random,
            call_later=self._call_later,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.now:.6g} s, {len(self.slept)} sleeps>"

    def clock(self) -> Clock:
        """Return the clock for a client. Clients with the same clock share their time."""
        return self._clock

    def __call__(self) -> float:
        """Return the time, for the arguments ``clock`` and ``now`` of a local server's state."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sleep in simulated time."""
        self.slept.append(seconds)
        await self.elapse(seconds)

    def _call_later(self, seconds: float, function: Callable[[], object]) -> _Sleeper:
        """Call a function later: a heartbeat, a time limit. Does not advance the clock."""
        return self._add(seconds, function, urgent=False)

    async def elapse(self, seconds: float) -> None:
        """Let this much time pass, to simulate delays on the network."""
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        sleeper = self._add(seconds, woken.set, urgent=True)
        if loop not in self._jumping:
            self._jumping[loop] = loop.create_task(self._jump(loop), name="stepped clock")
        try:
            await woken.wait()
        finally:
            self._forget(sleeper)

    def advance(self, seconds: float, *, idle: bool = False) -> None:
        """Advance the time and wake the sleepers that are due, in order. Returns after they have
        run.

        First waits, for a few real seconds at most, until there is a sleeper to wake. Raises
        AssertionError if there is none, unless ``idle`` is True.
        """
        until = self.now + seconds
        with self._changed:
            patience = 0 if idle else _PATIENCE_SECONDS
            there = self._changed.wait_for(
                lambda: any(one.due <= until for one in self._sleepers), patience
            )
            if idle and not there:
                self.now = until
                return
            assert there, (
                f"no sleep ends within {seconds} s; to move the time anyway, pass idle=True"
            )
            loop = min(self._sleepers).loop
        # the last thing that happened was the end of the loop
        with suppress(concurrent.futures.CancelledError):
            asyncio.run_coroutine_threadsafe(self._advance(seconds), loop).result()

    async def _advance(self, seconds: float) -> None:
        await self.elapse(seconds)
        await self._calm()

    @contextmanager
    def busy(self) -> Generator[None]:
        """Stop time jumps while the block runs, because it takes real time, or to look at requests
        while they wait.
        """
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1

    def _add(self, seconds: float, wake: Callable[[], object], *, urgent: bool) -> _Sleeper:
        due = self.now + max(seconds, 0.0)
        sleeper = _Sleeper(
            due, next(self._numbers), urgent, wake, asyncio.get_running_loop(), self._forget
        )
        with self._changed:
            self._sleepers.append(sleeper)
            self._changed.notify_all()
        return sleeper

    def _forget(self, sleeper: _Sleeper) -> None:
        with self._changed:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    async def _jump(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake one sleeper at a time, as long as a sleeper of this loop waits."""
        try:
            while any(sleeper.urgent and sleeper.loop is loop for sleeper in self._sleepers):
                await self._calm()
                self._wake_next()
        finally:
            del self._jumping[loop]

    def _wake_next(self) -> None:
        with self._changed:
            if self._busy or not any(sleeper.urgent for sleeper in self._sleepers):
                return
            sleeper = min(self._sleepers)
            self._sleepers.remove(sleeper)
            self.now = max(self.now, sleeper.due)
        if not sleeper.loop.is_closed():
            sleeper.loop.call_soon_threadsafe(sleeper.end)

    async def _calm(self) -> None:
        """Wait until nothing has happened for some iterations of the loop."""
        turns = 0
        while turns < _CALM_TURNS:
            turns = 0 if self._busy else turns + 1
            await asyncio.sleep(_LOOK_AGAIN_SECONDS if self._busy else 0)
