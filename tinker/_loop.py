"""Time, and the one thread that runs all I/O of the process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import random
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import Context
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

import msgspec

from tinker._basics.lazy import shield
from tinker.errors import ClientClosedError, TinkerError, copy_error


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


logger = logging.getLogger("tinker")
K = TypeVar("K")
T = TypeVar("T")

TICK_SECONDS = 0.5
LONG_SECONDS = 2.0
NEWS_SECONDS = 60.0
HELD = "code in this process held the GIL; run long computations in another process"
STARVED = (
    "this process got little processor time: the machine is busy or was suspended, or a blocking "
    "call held the GIL"
)
_IMPORT_SYSTEM = "<frozen importlib"


class _TaskOwner(Protocol[T]):
    """The future that the outcome of a task goes to."""

    operation: str
    _task: asyncio.Task[T] | None

    def cancelled(self) -> bool: ...

    def _settle(self, task: asyncio.Task[T]) -> None: ...


class LoopThread:
    """An asyncio loop on a daemon thread, started by the first call; or ``loop``, which the caller
    runs in this thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._loop = loop
        self._drains = 0  # counted by the loop when a drain begins
        self._woken_for = -1  # N: a wake-up is pending for drain N+1
        # taken by threads of this class only, which signals do not interrupt
        self._starting = threading.Lock()
        self._ident: int | None = None if loop is None else threading.get_ident()
        self._tasks: dict[asyncio.Task[Any], _TaskOwner[Any] | None] = {}
        # in order: started, and without a task so far
        self._handed_over: dict[_TaskOwner[Any], None] = {}
        self._logged: weakref.WeakSet[_TaskOwner[Any]] = weakref.WeakSet()  # by `log_unfinished`
        self._is_watched = False
        self._user_executor: concurrent.futures.ThreadPoolExecutor | None = None

    def call(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the loop thread, after everything handed over before."""
        self._calls.append(function)
        drains = self._drains
        if self._woken_for == drains:
            return
        loop = self._loop
        if loop is None:
            self._start()
        else:
            loop.call_soon_threadsafe(self._drain)
        self._woken_for = drains

    def start(self, owner: _TaskOwner[T], make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Run the coroutine that ``make`` returns, after everything handed over before; its outcome
        goes to the owner.
        """
        self._handed_over[owner] = None
        self.call(partial(self._begin, owner, make))

    def _begin(self, owner: _TaskOwner[T], make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        owner._task = self.task(make(), owner.operation, owner)  # pyright: ignore[reportPrivateUsage]
        del self._handed_over[owner]

    def task(
        self,
        coroutine: Coroutine[Any, Any, T],
        name: str | None = None,
        owner: _TaskOwner[T] | None = None,
    ) -> asyncio.Task[T]:
        """Start a task of this thread, whose outcome goes to the owner; call only on the loop. See
        :meth:`background`.

        It has a context of its own: what is set for the task that starts it is not set for this
        one.
        """
        assert self._loop is not None
        task = asyncio.Task(coroutine, loop=self._loop, name=name, context=Context())
        self._tasks[task] = owner
        task.add_done_callback(self._retire if owner is None else partial(self._settle, owner))
        return task

    def background(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task nobody waits for; a failure is logged."""
        task = self.task(coroutine, name)
        task.add_done_callback(_log_failure)
        return task

    def watch_lag(self) -> None:
        """Log when something keeps this thread from running, for as long as it has other tasks."""
        if not self._is_watched:
            self._is_watched = True
            self.background(self._watch_lag(), "watch of the loop")

    async def _watch_lag(self) -> None:
        try:
            await LagWatch(Clock()).run(lambda: len(self._tasks) > 1)
        finally:
            self._is_watched = False

    async def run_in_user_thread(self, function: Callable[[], T]) -> T:
        """Run a function of the user on a worker thread, where it may block. Return its result, or
        raise its exception.
        """
        if self._user_executor is None:
            self._user_executor = concurrent.futures.ThreadPoolExecutor(
                thread_name_prefix="tinker-user"
            )
        return await asyncio.get_running_loop().run_in_executor(
            self._user_executor, _call_safely, function
        )

    def log_unfinished(
        self, when: str, ours: Callable[[_TaskOwner[Any]], bool] = lambda _: True
    ) -> None:
        """Log, once, the operations that nobody has waited for, those that have not begun too; from
        any thread.

        Creations and ends of clients alone are not worth a line: nothing was done with what they
        create, or nothing is lost.
        """
        handed_over = tuple(self._handed_over)  # first: what begins meanwhile is among the tasks
        # an operation that closes its own client
        running = asyncio.current_task() if self.is_current() else None
        begun = [
            owner
            for task, owner in tuple(self._tasks.items())
            if owner is not None and task is not running
        ]
        owners = dict.fromkeys([*begun, *handed_over])
        unfinished = [
            one for one in owners if not one.cancelled() and one not in self._logged and ours(one)
        ]
        self._logged.update(unfinished)
        if not all(one.operation.startswith(("create_", "close")) for one in unfinished):
            first, last = unfinished[0].operation, unfinished[-1].operation
            what = (
                first if len(unfinished) == 1 else f"{len(unfinished)} requests, {first} to {last},"
            )
            logger.warning(
                "%s had not finished %s, and may be lost; call .result() on the "
                "last request to wait",
                what,
                when,
            )

    def _settle(self, owner: _TaskOwner[T], task: asyncio.Task[T]) -> None:
        del self._tasks[task]
        owner._settle(task)  # pyright: ignore[reportPrivateUsage]

    def _retire(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            # looked at, so that a task whose waiter was cancelled is not reported as forgotten
            task.exception()

    def is_current(self) -> bool:
        """Return whether the caller runs on the loop thread, where blocking would
        stop everything.
        """
        return threading.get_ident() == self._ident

    def end_reports(self) -> None:
        """Report nothing that goes wrong from here on: the end of the interpreter closes
        connections.
        """
        if self._loop is not None:
            self._loop.set_exception_handler(lambda _, __: None)

    def _start(self) -> None:
        """Start a thread that runs the loop, or wakes it where another thread runs it already."""
        thread = threading.Thread(target=self._run, name="tinker-loop", daemon=True)
        shield(thread.start)()

    def _run(self) -> None:
        with self._starting:
            loop = self._loop
            if loop is None:
                self._ident = threading.get_ident()
                loop = asyncio.new_event_loop()
                loop.call_soon(self._drain)
                self._loop = loop
            else:
                with contextlib.suppress(RuntimeError):  # closed meanwhile: nothing is run any more
                    loop.call_soon_threadsafe(self._drain)
                return
        asyncio.set_event_loop(loop)
        while not loop.is_closed():
            _run_until_stopped(loop)

    def _drain(self) -> None:
        self._drains += 1
        assert self._loop is not None
        # Calls added while draining get a drain of their own; taking them early keeps the order.
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            if self._calls:  # one failed, which the loop reports
                self._loop.call_soon(self._drain)


class TaskScope:
    """The tasks of one client, each with a name, and its waits. Closing ends them all, once; no
    other starts afterwards.

    Used on the loop only.
    """

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._waits: dict[asyncio.Timeout, None] = {}
        self.is_closed: bool = False

    def check_open(self) -> None:
        """Raise ClientClosedError once the scope is closed."""
        if self.is_closed:
            raise ClientClosedError("the client is closed")

    def join(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the task of this name that is under way, else a new one that does ``work()``. See
        :meth:`share`.
        """
        task = self._tasks.get(name)
        if task is None or task.done():
            self.check_open()
            task = self._tasks[name] = self._thread.task(work(), name)
            task.add_done_callback(self._remove)
        return task

    async def share(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what the task of a name returns, which is not cancelled with this wait; each
        caller gets its own error.
        """
        task = self.join(name, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                self.check_open()
            raise
        except TinkerError as error:
            raise copy_error(error) from error.__cause__

    def background(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task nobody waits for, unless one of this name is under way; its failure is
        logged. Nothing once closed.
        """
        if not self.is_closed and not self.is_running(name):
            self.join(name, work).add_done_callback(_log_failure)

    def is_running(self, name: str) -> bool:
        """Return whether the task of this name is under way."""
        return name in self._tasks and not self._tasks[name].done()

    def cancel(self, *names: str) -> None:
        """Cancel the tasks of these names; other ones may start under the names at once."""
        for name in names:
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()

    async def wait(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await what ``make`` returns; ClientClosedError as soon as the scope is closed."""
        self.check_open()
        try:
            async with asyncio.timeout(None) as limit:
                self._waits[limit] = None
                try:
                    return await make()
                finally:
                    del self._waits[limit]
        except TimeoutError:
            self.check_open()
            raise

    def close(self) -> None:
        """Cancel every task, and end every wait."""
        self.is_closed = True
        self.cancel(*self._tasks)
        for limit in self._waits:
            limit.reschedule(0)

    def _remove(self, task: asyncio.Task[Any]) -> None:
        if self._tasks.get(name := task.get_name()) is task:
            del self._tasks[name]


async def run_together(jobs: Mapping[K, Coroutine[Any, Any, T]]) -> Mapping[K, T]:
    """Run all at once and return the results by key; the first failure cancels the others and is
    raised.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {key: group.create_task(job) for key, job in jobs.items()}
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return {key: task.result() for key, task in tasks.items()}


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop. What stops it, such as SystemExit in a callback, is logged: every client of the
    process needs the loop.
    """
    try:
        loop.run_forever()
    except BaseException as error:
        logger.error(
            "a callback tried to end the I/O thread of tinker; the thread continues", exc_info=error
        )


def must_pass(error: BaseException) -> bool:
    """Return whether an error of a user's callback must reach the caller: SystemExit,
    KeyboardInterrupt, off the loop.
    """
    return not isinstance(error, Exception) and not loop_thread().is_current()


def _call_safely(function: Callable[[], T]) -> T:
    __tracebackhide__ = True
    try:
        return function()
    except Exception:
        raise
    except BaseException as error:
        # one of these would end the loop, and with it every client of the process
        raise RuntimeError(f"the function ended with {error!r}") from error


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed", task.get_name(), exc_info=error)


_current = LoopThread()


def loop_thread() -> LoopThread:
    """Return the loop thread of this process."""
    return _current


def _fresh_after_fork() -> None:
    global _current
    _current = LoopThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_after_fork)


# ------------------------------------------------------------------------- when the loop cannot run


class LagWatch:
    """Sleeps in short pieces and looks how late it wakes. At most one line a minute, about the
    longest hold since the last.

    An import that takes long is not reported: it happens once, and cannot be moved elsewhere.
    Whether code of this process is the cause is told by the processor time that the process used
    meanwhile.
    """

    def __init__(
        self, clock: Clock, processor_time: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._processor_time = clock, processor_time
        self._reported_at = -NEWS_SECONDS
        self._longest, self._used = 0.0, 0.0

    async def run(self, needed: Callable[[], bool]) -> None:
        """Watch for as long as somebody needs it."""
        while needed():
            before, used_before = self._clock.monotonic(), self._processor_time()
            await self._clock.sleep(TICK_SECONDS)
            now = self._clock.monotonic()
            late = now - before - TICK_SECONDS
            if late > self._longest and (late < LONG_SECONDS or not is_importing()):
                self._longest, self._used = late, self._processor_time() - used_before
            if self._longest >= LONG_SECONDS and now - self._reported_at >= NEWS_SECONDS:
                self._report(now)

    def _report(self, now: float) -> None:
        logger.warning(
            "nothing could be sent or received for %.1f s, heartbeats included, because %s",
            self._longest,
            HELD if self._used >= self._longest / 2 else STARVED,
        )
        self._reported_at, self._longest = now, 0.0


def is_importing() -> bool:
    """Return whether a thread of this process is importing a module."""
    return any(_is_import(frame) for frame in sys._current_frames().values())  # pyright: ignore[reportPrivateUsage]


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            return True
        frame = frame.f_back
    return False
