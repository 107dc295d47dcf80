"""An event loop with virtual time that runs what is ready in an order drawn from a seed. Nothing
waits and no thread runs.

Tasks that wake up because a future is done do so in any order. Callbacks and the first steps of
tasks keep the order that asyncio promises, on which the client counts: calls are begun in their
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
import secrets
import uuid
from collections.abc import Callable, Generator
from typing import Any

import numpy.random  # noqa: F401 - it draws an identifier when it is imported

from tinker import _loop
from tinker._loop import Clock

LONGEST_JOB_SECONDS = 0.05  # of what would run in a worker thread


async def _find_wakeup() -> type:
    """Return the type of the callbacks that wake a task up when a future is done, whose order is
    free.
    """
    future = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(asyncio.wait_for(future, None))
    await asyncio.sleep(0)
    found = type(future._callbacks[0][0])
    future.set_result(None)
    await task
    return found


_WAKEUP = asyncio.run(_find_wakeup())


class _Timer(asyncio.TimerHandle):
    """A timer that is made with less work."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Any,
        args: Any,
        loop: SimulatedLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args, self._when = loop, callback, args, when
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled, self._callback, self._args = True, None, None


class SimulatedLoop(asyncio.BaseEventLoop):
    """Time jumps to the next timer when nothing is ready. Jobs of executors run here, a random
    moment later.
    """

    def __init__(self, seed: object) -> None:
        super().__init__()
        self.random = random.Random(repr(seed))
        self.now = 1000.0
        self.wall_offset = 0.0  # of the clients' wall clock
        self.steps = 0
        # a heap; tuples are compared faster than handles
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def time(self) -> float:
        return self.now

    def close(self) -> None:
        super().close()
        self._timers.clear()

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()
        self.call_later(
            self.random.random() * LONGEST_JOB_SECONDS, self._run_job, future, func, args
        )
        return future

    def _run_job(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        try:
            result = func(*args)
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    def _check_closed(self) -> None:
        """Take calls also after the end, when clients are collected; they are never made."""

    def _process_events(self, event_list: Any) -> None:
        return

    def _write_to_self(self) -> None:
        return

    def _run_once(self) -> None:
        """Run one of the callbacks that are ready."""
        ready, timers = self._ready, self._timers
        while timers and (timers[0][2]._cancelled or not ready or timers[0][0] <= self.now):
            when, _, timer = heapq.heappop(timers)
            if not timer._cancelled:
                self.now = max(self.now, when)
                ready.append(timer)
        if not ready:
            raise RuntimeError("everything waits for something that never happens")
        handle = ready.popleft() if len(ready) == 1 else self._draw()
        self.steps += 1
        if not handle._cancelled:
            handle._run()

    def _draw(self) -> asyncio.Handle:
        """Take one of the callbacks that are ready. Those that asyncio promises to run in order
        keep it.
        """
        ready = self._ready
        place = int(self.random.random() * len(ready))
        if type(ready[place]._callback) is not _WAKEUP:
            place = next(
                i for i, handle in enumerate(ready) if type(handle._callback) is not _WAKEUP
            )
        handle = ready[place]
        del ready[place]
        return handle

    def clock(self) -> Clock:
        """Return the clock of a client on this loop."""
        return Clock(
            monotonic=self.time,
            wall=lambda: self.now + self.wall_offset,
            sleep=asyncio.sleep,
            random=self.random.random,
        )


@contextlib.contextmanager
def simulated_loop(seed: object) -> Generator[SimulatedLoop]:
    """Make it the loop of every client, and draw identifiers from the seed, inside the block."""
    loop, before, uuid4, randbits = (
        SimulatedLoop(seed),
        _loop._current,
        uuid.uuid4,
        secrets.randbits,
    )
    identifiers = random.Random(f"{seed!r} identifiers")
    _loop._current = _loop.LoopThread(loop)
    _loop._current._is_watched = True  # nothing holds this loop up
    uuid.uuid4 = lambda: uuid.UUID(int=identifiers.getrandbits(128), version=4)
    secrets.randbits = identifiers.getrandbits
    try:
        yield loop
    finally:
        _loop._current, uuid.uuid4, secrets.randbits = before, uuid4, randbits
        loop.close()
