"""Handing work to the I/O thread: in order, with few wake-ups, despite interrupts and failures."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any

import pytest

from tinker._futures import ClosableQueue
from tinker._http.observers import Observers
from tinker._loop import Clock, LoopThread, loop_thread
from tinker.futures import APIFuture, immediate
from tinker.observing import QueueChange

SECONDS = 10.0
# Functions of Python in which a signal may interrupt the caller; those of threads and conditions hold
# a lock at some of their lines, and never let it go if the signal comes there.
LOCKING: frozenset[CodeType] = frozenset(
    {
        threading.Thread.start.__code__,
        threading.Event.wait.__code__,
        threading.Condition.wait.__code__,
        threading.Condition.__enter__.__code__,
        threading.Condition.__exit__.__code__,
    }
)
HANDING_OVER: frozenset[CodeType] = frozenset(
    {
        LoopThread.call.__code__,
        LoopThread._start.__code__,
        asyncio.BaseEventLoop.call_soon_threadsafe.__code__,
    }
)


@contextmanager
def loop_of_its_own() -> Iterator[LoopThread]:
    """Yield a loop thread that is not started yet; it ends with the block."""
    thread = LoopThread()
    yield thread
    if thread._loop is not None:
        over = threading.Event()
        thread.call(lambda: end(thread._loop, over))
        assert over.wait(SECONDS)


def end(loop: Any, over: threading.Event) -> None:
    def close() -> None:
        loop.close()
        over.set()

    loop.run_forever = close  # the next step of the thread
    loop.stop()


def runs(thread: LoopThread) -> bool:
    """Return whether a call made now is run."""
    done = threading.Event()
    thread.call(done.set)
    return done.wait(SECONDS)


def interrupt(
    at: int, function: Callable[[], object], where: frozenset[CodeType] = HANDING_OVER
) -> bool:
    """Interrupt a call before the n-th line or bytecode of some functions; False without an
    n-th.
    """
    left = at

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code not in where:
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_anywhere_in_a_call_leaves_a_loop_that_runs() -> None:
    """Wherever Ctrl-C interrupts a caller, what was handed over before a later call runs first."""
    with loop_of_its_own() as thread:
        assert runs(thread)
        seen: list[int] = []
        at = 0
        while interrupt(at, partial(thread.call, partial(seen.append, at))):
            assert runs(thread), f"nothing runs any more after an interrupt at {at}"
            at += 1
        assert runs(thread)
        assert at > 10
        assert seen[-1] == at
        assert seen == sorted(seen)


def test_an_interrupt_anywhere_in_the_first_call_leaves_a_loop_that_runs() -> None:
    """The call that starts the thread may be interrupted anywhere, too."""
    at, reached = 0, True
    while reached:
        with loop_of_its_own() as thread:
            reached = interrupt(at, lambda: thread.call(lambda: None), HANDING_OVER | LOCKING)
            assert runs(thread), f"nothing runs after an interrupt at {at}"
        at += 1
    assert at > 10


LOCKED: dict[str, Callable[[APIFuture[int], ClosableQueue[int]], object]] = {
    "result": lambda future, _: future.result(0),
    "exception": lambda future, _: future.exception(0),
    "callback": lambda future, _: future.add_done_callback(print),
    "cancel": lambda future, _: future.cancel(),
    "stream": lambda _, queue: queue.take(0),
}


@pytest.mark.parametrize("name", LOCKED)
def test_an_interrupt_anywhere_at_a_lock_leaves_it_to_the_loop(name: str) -> None:
    """Wherever Ctrl-C interrupts a call that takes the lock of a future or of a stream, the loop can
    take it afterwards.
    """
    at, reached = 0, True
    while reached:
        future, queue, reached = APIFuture[int]("test"), ClosableQueue[int](), False
        where = LOCKING - {threading.Condition.wait.__code__}
        with suppress(TimeoutError):
            reached = interrupt(at, partial(LOCKED[name], future, queue), where)
        for locked in (partial(queue.put, 1), partial(future.add_done_callback, id)):
            loop = threading.Thread(target=locked, daemon=True)
            loop.start()
            loop.join(SECONDS)
            assert not loop.is_alive(), f"the lock is never free after an interrupt at {at}"
        at += 1


def test_the_first_calls_of_many_threads_share_one_loop() -> None:
    """If many threads call first at once, one loop runs all calls, in the order of each thread."""
    with loop_of_its_own() as thread:
        together, seen, done = threading.Barrier(8), [], threading.Semaphore(0)

        def caller(name: int) -> None:
            together.wait(SECONDS)
            for number in range(20):
                thread.call(
                    lambda number=number: seen.append((name, number, threading.get_ident()))
                )  # type: ignore[misc]
            thread.call(done.release)

        callers = [threading.Thread(target=caller, args=(name,)) for name in range(8)]
        for one in callers:
            one.start()
        for one in callers:
            assert done.acquire(timeout=SECONDS)
            one.join()
        assert len({ident for _, _, ident in seen}) == 1
        assert all(
            [n for name, n, _ in seen if name == wanted] == list(range(20)) for wanted in range(8)
        )


def test_a_burst_of_calls_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls made while the loop is busy wake it once, and run in order."""
    with loop_of_its_own() as thread:
        assert runs(thread)
        loop, woken, seen = thread._loop, [], []
        assert loop is not None
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *a: (woken.append(a), wake(*a))[1])
        held, begun = threading.Event(), threading.Event()
        thread.call(lambda: (begun.set(), held.wait(SECONDS)))
        assert begun.wait(SECONDS)
        del woken[:]
        for number in range(1000):
            thread.call(lambda number=number: seen.append(number))  # type: ignore[misc]
        held.set()
        assert runs(thread)
        assert seen == list(range(1000))
        assert len(woken) <= 2


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), ValueError("x")]
)
def test_exceptions_of_callbacks_do_not_end_the_loop(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Any exception of a callback on the I/O thread is logged, and the thread continues."""

    def fail() -> None:
        raise error

    with loop_of_its_own() as thread:
        thread.call(fail)
        assert runs(thread)
    assert type(error).__name__ in caplog.text or isinstance(error, asyncio.CancelledError)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("x")])
def test_done_callbacks_that_raise(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of a done callback is logged, and whoever else waits goes on."""

    def fail(_: object) -> None:
        raise error

    async def value() -> int:
        await asyncio.sleep(0)
        return 7

    future: APIFuture[int] = APIFuture("a test")
    called = threading.Event()
    future.add_done_callback(fail)
    future.add_done_callback(lambda _: called.set())
    loop_thread().start(future, value)
    assert called.wait(SECONDS)
    assert runs(loop_thread())
    assert "a done callback of a test failed" in caplog.text


def test_a_callback_in_the_callers_thread_may_end_the_program() -> None:
    """SystemExit of a callback that is called at once reaches the caller."""

    def leave(_: object) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        immediate(7).add_done_callback(leave)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("x")])
def test_observers_that_raise(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Any exception of an observer on the I/O thread is logged; later observers are notified."""
    seen: list[object] = []

    def fail(*_: object) -> None:
        raise error

    future: APIFuture[int] = APIFuture("a test")
    future.observe_queue(fail)
    future.observe_queue(lambda *state: seen.append(state))
    observers = Observers(Clock(), [fail, seen.append])
    event = QueueChange(operation="a test", request_id="r", state="active", reason=None)
    done = threading.Event()
    loop_thread().call(
        lambda: (future.progress.note_queue("active", None), observers.notify(event), done.set())
    )
    assert done.wait(SECONDS)
    assert seen == [("active", None), event]
    assert "an observer of the queue failed" in caplog.text
    assert "failed; it stays registered" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("wait", ["result", "exception", "await"])
def test_futures_of_the_parent_in_a_forked_child(wait: str) -> None:
    """In a forked child, a pending future of the parent raises at once."""
    pending: APIFuture[int] = APIFuture("a test")

    async def awaited() -> int:
        return await pending

    waits = {
        "result": lambda: pending.result(SECONDS),
        "exception": lambda: pending.exception(SECONDS),
    }
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            try:
                waits[wait]() if wait in waits else asyncio.run(
                    asyncio.wait_for(awaited(), SECONDS)
                )
            except RuntimeError as error:
                code = 0 if "a test" in str(error) and "parent" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_failure_without_a_waiter(caplog: pytest.LogCaptureFixture) -> None:
    """The failure of a task without a waiter is not reported by asyncio as never retrieved."""

    async def fail() -> None:
        raise LookupError

    with loop_of_its_own() as thread:
        thread.call(lambda: thread.task(fail()))
        assert runs(thread)
        assert runs(thread)
        gc.collect()
        assert runs(thread)
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_finished_tasks_are_not_kept() -> None:
    """A loop keeps no finished task, however it ended."""
    with loop_of_its_own() as thread:
        kept: list[Any] = []
        thread.call(lambda: kept.append(weakref.ref(thread.task(asyncio.sleep(0)))))
        thread.call(
            lambda: kept.append(weakref.ref(thread.task(asyncio.sleep(0), owner=APIFuture())))
        )
        for _ in range(4):
            assert runs(thread)
        gc.collect()
        assert [one() for one in kept] == [None, None]


def test_reports_end_with_the_interpreter(caplog: pytest.LogCaptureFixture) -> None:
    """Messages of connections that are closed by the end of the interpreter are not logged."""

    def fail() -> None:
        raise ValueError

    with loop_of_its_own() as thread:
        thread.end_reports()
        assert runs(thread)
        thread.end_reports()
        thread.call(fail)
        assert runs(thread)
    assert caplog.messages == []


@pytest.mark.parametrize("ending", [None, LookupError("x"), SystemExit(3)])
def test_user_functions_run_off_the_loop(ending: BaseException | None) -> None:
    """The function runs on another thread, whose result or error is returned."""

    def work() -> bool:
        if ending is not None:
            raise ending
        return loop_thread().is_current()

    future: APIFuture[bool] = APIFuture("a test")
    loop_thread().start(future, partial(loop_thread().run_in_user_thread, work))
    if ending is None:
        assert future.result(SECONDS) is False
    else:
        with pytest.raises(LookupError if isinstance(ending, LookupError) else RuntimeError):
            future.result(SECONDS)


def test_started_operations_are_unfinished(caplog: pytest.LogCaptureFixture) -> None:
    """An operation is unfinished from its start, also before it has a task."""
    logged = threading.Event()

    # runs after the loop has taken the operation from the queue and before it begins
    def log() -> None:
        thread.log_unfinished("in the test")
        logged.set()

    with loop_of_its_own() as thread:
        gate = threading.Event()
        thread.call(lambda: gate.wait(10))
        thread.call(log)
        thread.start(APIFuture("save_state"), partial(asyncio.sleep, 0))
        gate.set()
        assert logged.wait(10)
    assert caplog.text.count("save_state had not finished in the test") == 1
