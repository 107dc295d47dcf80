"""Queues and the engine's thread: order of numbers, gaps, batches of samples, periodic tasks, and
the end.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import msgspec
import pytest
from support.api import Clock, MakeApi
from support.server_parts import NoEvents

from tinker.local.call import APIProblem
from tinker.local.engines.protocol import AdapterSpec, EngineError
from tinker.local.engines.toy import ToyEngine
from tinker.local.scheduling import (
    WORKER_CLOSED,
    ModelQueue,
    PeriodicTask,
    SampleQueue,
    SampleTask,
    ServedModel,
    Worker,
)
from tinker.local.settings import Settings
from tinker.local.storage.futures import FutureStore, RequestFailure, ServerFuture
from tinker.local.storage.sessions import ModelTask, SmallLoss


class Done(msgspec.Struct):
    """A result."""

    name: str


@pytest.fixture
def futures(tmp_path: Path) -> FutureStore:
    """Return the store of the results."""
    return FutureStore(Settings(data_dir=tmp_path), threading.RLock(), Clock(), NoEvents())


@pytest.fixture
def queue(futures: FutureStore) -> ModelQueue:
    """Return the queue of a model; a missing number holds the others back for ten seconds."""
    return ModelQueue(futures, 10.0)


def work(
    futures: FutureStore, name: str, log: list[str] | None = None, error: Exception | None = None
) -> ModelTask:
    def run(engine: Any) -> Any:
        if log is not None:
            log.append(name)
        if error is not None:
            raise error
        return Done(name)

    return ModelTask(futures.open(ServerFuture(name, name.encode())), run, "optim_step", 1)


def taken(queue: Any, now: float) -> bool:
    """Take a step and carry it out; return whether there was one."""
    step = queue.take(now)
    if step is not None:
        step(lambda: None)
    return step is not None


def drain(queue: Any, now: float) -> None:
    while taken(queue, now):
        pass


def test_requests_run_in_the_order_of_their_numbers(
    futures: FutureStore, queue: ModelQueue
) -> None:
    """Requests run in the order of their numbers, whatever the order of arrival; a later one waits
    for a missing number.
    """
    log: list[str] = []
    assert queue.is_fresh
    for number in (2, 0, 3):
        queue.put(number, work(futures, str(number), log), 0.0)
    assert not queue.is_fresh
    drain(queue, 1.0)
    assert log == ["0"]
    assert queue.next_wake() == 11.0
    assert "seq_id 1" in str(queue.describe_gap())
    queue.put(1, work(futures, "1", log), 2.0)
    assert (queue.next_wake(), queue.describe_gap()) == (None, None)
    drain(queue, 2.0)
    assert log == ["0", "1", "2", "3"]
    assert not taken(queue, 100.0)


def test_a_gap_ends_at_its_time(futures: FutureStore, queue: ModelQueue) -> None:
    """A number that does not come in time is skipped: the later ones run, and it is refused when it
    arrives.
    """
    log: list[str] = []
    queue.put(0, work(futures, "0", log), 0.0)
    drain(queue, 0.0)
    queue.put(5, work(futures, "5", log), 3.0)
    queue.put(7, work(futures, "7", log), 4.0)
    assert queue.next_wake() == 13.0
    drain(queue, 12.9)
    assert log == ["0"]
    queue.require_free(1)
    drain(queue, 13.0)
    assert log == ["0", "5"]
    for number in (0, 1, 4, 5, 7):
        with pytest.raises(APIProblem, match="is stale"):
            queue.require_free(number)
    queue.require_free(6)
    assert queue.next_wake() == 23.0
    drain(queue, 23.0)
    assert log == ["0", "5", "7"]
    assert queue.next_wake() is None


def test_what_an_earlier_process_gave_up_holds_nothing_back(
    futures: FutureStore, queue: ModelQueue
) -> None:
    """A number that was given up before a restart is refused, and not waited for; those behind it
    are.
    """
    log: list[str] = []
    queue.start_at(1)
    for number in (1, 3, 5):
        queue.put(number, work(futures, str(number), log), 0.0)
    queue.settle(3, 1.0)
    with pytest.raises(APIProblem, match="seq_id 2 is stale: the next one of this model is 3"):
        queue.require_free(2)
    drain(queue, 1.0)
    assert log == ["1", "3"]
    queue.require_free(4)
    assert queue.next_wake() == 11.0


@pytest.mark.parametrize(
    ("operation", "known", "runs"),
    [
        ("forward_backward", 0, False),
        ("optim_step", 0, False),
        ("load_weights", 0, False),
        ("optim_step", 1, True),
        ("optim_step", None, True),
        ("forward", 0, True),
        ("save_weights", 0, True),
    ],
)
def test_what_runs_behind_a_failure(
    futures: FutureStore, queue: ModelQueue, operation: str, known: int | None, runs: bool
) -> None:
    """A request does not run after a failed one that changes the run, unless its caller knew of the
    failure or does not say.
    """
    log: list[str] = []

    def run(engine: Any) -> Any:
        queue.require_success()
        log.append("ran")
        return Done("2")

    failing = attrs.evolve(work(futures, "1", error=EngineError("broken")), operation=operation)
    future = futures.open(ServerFuture("2", b"2"))
    queue.put(0, work(futures, "0"), 0.0)
    queue.put(1, failing, 0.0)
    queue.put(2, ModelTask(future, run, "optim_step", 2, known), 0.0)
    drain(queue, 0.0)
    assert log == ["ran"] * runs
    if not runs:
        assert future.outcome == RequestFailure(
            f"the {operation} before it failed: broken", "user", operation
        )


def test_numbers_that_were_refused_hold_nobody_back(
    futures: FutureStore, queue: ModelQueue
) -> None:
    """A skipped number is used up; a number that is waiting or done cannot be skipped."""
    log: list[str] = []
    queue.put(0, work(futures, "0", log), 0.0)
    queue.put(2, work(futures, "2", log), 0.0)
    queue.skip(1, 0.0)
    queue.skip(2, 0.0)
    queue.skip(0, 0.0)
    drain(queue, 0.0)
    assert log == ["0", "2"]
    queue.skip(1, 0.0)
    assert queue.next_wake() is None
    queue.skip(4, 5.0)
    assert queue.next_wake() == 15.0
    queue.put(3, work(futures, "3", log), 6.0)
    drain(queue, 6.0)
    assert log == ["0", "2", "3"]
    assert queue.assign_number(None) == 5


def test_free_numbers(futures: FutureStore, queue: ModelQueue) -> None:
    """A request without a number, or with 0, gets the first free one after all submitted, and never
    the creation's.
    """
    assert [queue.assign_number(given) for given in (None, 0, 1, 7)] == [1, 1, 1, 7]
    queue.put(0, work(futures, "0"), 0.0)
    assert queue.assign_number(None) == 1
    assert queue.is_fresh
    queue.put(3, work(futures, "3"), 0.0)
    assert queue.assign_number(None) == 4
    assert not queue.is_fresh
    drain(queue, 0.0)
    assert queue.assign_number(0) == 4
    drain(queue, 10.0)
    assert queue.assign_number(None) == 4
    assert queue.assign_number(2) == 2


def test_a_closed_queue_runs_what_can_run_and_fails_the_rest(
    futures: FutureStore, queue: ModelQueue
) -> None:
    """Requests behind a gap fail with the given reason; the last step comes once, after everything
    else.
    """
    log: list[str] = []
    ready, stuck = work(futures, "0", log), work(futures, "2", log)
    queue.put(0, ready, 0.0)
    queue.put(2, stuck, 0.0)
    queue.skip(4, 0.0)
    queue.close(RequestFailure("over", "user"), lambda open_engine: log.append("last"))
    drain(queue, 0.0)
    assert log == ["0", "last"]
    assert ready.future.outcome == Done("0")
    assert stuck.future.outcome == RequestFailure("over", "user")
    assert not taken(queue, 100.0)
    assert queue.next_wake() is None


def test_whose_fault_a_failure_is(
    futures: FutureStore, queue: ModelQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """What an engine refuses is the user's fault and reported unchanged; anything else is the
    server's fault, and the log has its traceback.
    """
    errors = EngineError("too long"), KeyError("k")
    failing = [work(futures, str(at), error=error) for at, error in enumerate(errors)]
    for number, one in enumerate(failing):
        queue.put(number, one, 0.0)
    drain(queue, 0.0)
    assert [one.future.outcome for one in failing] == [
        RequestFailure("too long", "user"),
        RequestFailure("KeyError: 'k'", "server"),
    ]
    (record,) = caplog.records
    assert record.exc_info is not None


# Samples that join and leave


class Stepped:
    """An engine whose jobs are (name, number of tokens) and which draws one token of each at a
    step.
    """

    def __init__(self) -> None:
        self.steps: list[list[str]] = []
        self.limits: list[int] = []
        self.jobs: dict[Any, list[Any]] = {}
        self.broken: str | None = None

    def open_batch(self, limit: int) -> Any:
        self.limits.append(limit)
        return self

    @property
    def tokens(self) -> int:
        return 4 * len(self.jobs)

    def add(self, ticket: Any, job: Any) -> None:
        if job[1] < 0:
            raise EngineError("refused")
        self.jobs[ticket] = list(job)

    def drop(self, ticket: Any) -> None:
        self.jobs.pop(ticket, None)

    def step(self) -> list[tuple[Any, Any]]:
        if self.broken == "all":
            raise ZeroDivisionError("broken")
        self.steps.append([name for name, _ in self.jobs.values()])
        ended: list[tuple[Any, Any]] = []
        for ticket, job in list(self.jobs.items()):
            job[1] -= 1
            if job[0] == self.broken:
                ended.append((ticket, EngineError("diverged")))
            elif job[1] == 0:
                ended.append((ticket, job[0]))
        for ticket, _ in ended:
            del self.jobs[ticket]
        return ended


def stepped(futures: FutureStore, name: str, length: int, **fields: Any) -> SampleTask:
    job: Any = (name, length)
    return SampleTask(
        futures.open(ServerFuture(name, name.encode())),
        lambda engine: job,
        Done,
        prompt_tokens=4,
        **fields,
    )  # type: ignore[arg-type]


def put(queue: SampleQueue, *tasks: SampleTask) -> None:
    for task in tasks:
        queue.put(task)


def advance(queue: SampleQueue, engine: Any, now: float = 0.0) -> None:
    step = queue.take(now)
    assert step is not None
    step(lambda: engine)


def test_a_sample_that_nobody_wants_does_not_run(futures: FutureStore) -> None:
    """A sample dropped before it begins does not run; the others keep their order."""
    queue, engine = SampleQueue(futures, 10), Stepped()
    every = [stepped(futures, name, 1) for name in "abc"]
    put(queue, *every)
    queue.drop(every[1].future)
    advance(queue, engine)
    assert engine.steps == [["a", "c"]]
    assert every[1].future.outcome is None
    assert queue.take(0.0) is None
    assert queue.next_wake() is None


def test_a_sample_is_done_when_it_ends_and_others_join_between_tokens(futures: FutureStore) -> None:
    """A short sample is done while a longer one continues; a sample that arrives meanwhile joins at
    the next token.
    """
    queue, engine = SampleQueue(futures, 100), Stepped()
    long, short, late = (
        stepped(futures, "long", 4),
        stepped(futures, "short", 1),
        stepped(futures, "late", 2),
    )
    put(queue, long, short)
    assert (queue.waiting, queue.running) == (2, 0)
    advance(queue, engine)
    assert (short.future.outcome, long.future.outcome) == (Done("short"), None)
    queue.put(late)
    advance(queue, engine)
    assert (queue.waiting, queue.running) == (0, 2)
    advance(queue, engine)
    assert (late.future.outcome, long.future.outcome) == (Done("late"), None)
    advance(queue, engine)
    assert long.future.outcome == Done("long")
    assert engine.steps == [["long", "short"], ["long", "late"], ["long", "late"], ["long"]]
    assert (queue.take(0.0), engine.limits) == (None, [100])


def test_samples_wait_for_tokens_that_are_held_not_for_those_that_may_come(
    futures: FutureStore,
) -> None:
    """A running sample counts with its present tokens; the next one begins when its prompt fits in
    addition.
    """
    queue, engine = SampleQueue(futures, 8), Stepped()
    for name, length in (("a", 1), ("b", 2), ("c", 1)):
        queue.put(stepped(futures, name, length))
    advance(queue, engine)
    advance(queue, engine)
    assert engine.steps == [["a", "b"], ["b", "c"]]


def test_what_nobody_wants_any_more_draws_no_further_token(futures: FutureStore) -> None:
    """A resolved future, the end of a session and the sample's deadline end a sample before its
    next token.
    """
    over: list[RequestFailure] = []
    queue, engine = SampleQueue(futures, 100, seconds=10.0), Stepped()
    cancelled, closed = (
        stepped(futures, "cancelled", 9),
        stepped(futures, "closed", 9, end=lambda: over[0] if over else None),
    )
    late, kept = stepped(futures, "late", 9), stepped(futures, "kept", 9)
    put(queue, cancelled, closed, late)
    advance(queue, engine, now=1.0)
    queue.put(kept)
    futures.resolve(cancelled.future, RequestFailure("cancelled", "user"))
    advance(queue, engine, now=2.0)
    over.append(RequestFailure("over", "user"))
    advance(queue, engine, now=11.0)
    advance(queue, engine, now=11.5)
    assert engine.steps == [
        ["cancelled", "closed", "late"],
        ["closed", "late", "kept"],
        ["late", "kept"],
        ["kept"],
    ]
    assert closed.future.outcome == RequestFailure("over", "user")
    assert late.future.outcome == RequestFailure(
        "the sample took more than 10 s (sample_seconds)", "user"
    )
    assert kept.future.outcome is None
    waiting = stepped(futures, "waiting", 9, end=lambda: over[0])
    queue.put(waiting)
    advance(queue, engine, now=11.6)
    assert waiting.future.outcome == RequestFailure("over", "user")
    assert engine.steps[-1] == ["kept"]


def test_the_failure_of_a_sample_that_runs_is_its_own(futures: FutureStore) -> None:
    """A sample that cannot begin, fails at a token or has an invalid result does not affect the
    others.
    """

    def refuse(result: Any) -> Any:
        raise EngineError("no such form")

    queue, engine = SampleQueue(futures, 100), Stepped()
    engine.broken = "diverging"
    good, bad = stepped(futures, "good", 2), stepped(futures, "diverging", 9)
    refused, odd = stepped(futures, "refused", -1), stepped(futures, "odd", 1)
    odd = SampleTask(odd.future, odd.job, refuse)
    put(queue, bad, refused, odd, good)
    advance(queue, engine)
    advance(queue, engine)
    outcomes = [one.future.outcome for one in (good, bad, refused, odd)]
    assert outcomes == [
        Done("good"),
        *(RequestFailure(text, "user") for text in ("diverged", "refused", "no such form")),
    ]


def test_after_a_breakdown_samples_begin_anew(futures: FutureStore) -> None:
    """When the engine breaks down all running samples fail with its error, and the next request
    starts a fresh batch.
    """
    queue, engine = SampleQueue(futures, 100), Stepped()
    engine.broken = "all"
    first, second, third = (stepped(futures, name, 1) for name in "abc")
    put(queue, first, second)
    advance(queue, engine)
    failure = RequestFailure("ZeroDivisionError: broken", "server")
    assert [first.future.outcome, second.future.outcome] == [failure, failure]
    assert queue.take(0.0) is None
    engine.broken = None
    engine.jobs.clear()
    queue.put(third)
    advance(queue, engine)
    assert third.future.outcome == Done("c")
    assert engine.limits == [100, 100]


# Periodic tasks and the thread


def test_a_periodic_task_is_done_from_time_to_time_while_it_is_needed() -> None:
    """A periodic task runs after each period while it is needed; without a need nothing waits for
    it.
    """
    done: list[str] = []
    needed = [False]
    task = PeriodicTask(5.0, lambda: needed[0], lambda: done.append("done"))

    def at(now: float) -> tuple[int, float | None]:
        assert task.take(now) is None
        return len(done), task.next_wake()

    assert at(0.0) == (0, None)
    needed[0] = True
    assert at(1.0) == (0, 6.0)
    assert at(5.9) == (0, 6.0)
    assert at(6.0) == (1, 11.0)
    assert at(20.0) == (2, 25.0)
    needed[0] = False
    assert at(30.0) == (2, None)
    needed[0] = True
    assert at(31.0) == (2, 36.0)


@pytest.fixture
def make_worker(futures: FutureStore) -> Any:
    """Make engine threads, stopped after the test."""
    made: list[Worker] = []

    def make(open_engine: Callable[[], Any] = lambda: "engine") -> Worker:
        made.append(
            Worker(
                ServedModel(open_engine, SampleQueue(futures, 1)).open, threading.RLock(), Clock()
            )
        )
        return made[-1]

    yield make
    for worker in made:
        worker.stop(lambda: None)  # type: ignore[arg-type, return-value]
        worker.join()


class Steps:
    """A queue of named steps, which take a while each by the worker's clock."""

    def __init__(
        self, log: list[str], *names: str, time: Clock | None = None, seconds: float = 0.0
    ) -> None:
        self.names, self._log = list(names), log
        self._time, self._seconds = time or Clock(), seconds

    def take(self, now: float) -> Any:
        if not self.names:
            return None
        name = self.names.pop(0)

        def run(open_engine: Any) -> None:
            self._log.append(f"{name} {open_engine()}")
            self._time.seconds += self._seconds

        return run

    def next_wake(self) -> float | None:
        return None


class Last(Steps):
    """A queue of one step, which records that it was taken."""

    def __init__(self) -> None:
        super().__init__([], "last")
        self.taken = threading.Event()

    def take(self, now: float) -> Any:
        return super().take(now) and (lambda open_engine: self.taken.set())


def finished(worker: Worker) -> None:
    """Wait until every queue has had its turn."""
    last = Last()
    worker.add(last)
    worker.notify()
    assert last.taken.wait(10)


def test_queues_take_turns_and_tasks_go_first(make_worker: Any) -> None:
    """No queue keeps another one waiting for more than one step; a removed queue gets no more
    turns.
    """
    log: list[str] = []
    worker = make_worker()
    gone = Steps(log, "gone")
    for queue in (Steps(log, "a1", "a2", "a3"), gone, Steps(log, "b1", "b2")):
        worker.add(queue)
    worker.remove(gone)
    worker.remove(gone)
    worker.submit_task(lambda open_engine: log.append("task"))
    finished(worker)
    finished(worker)
    assert log[0] == "task"
    assert log[1:5] == ["a1 engine", "b1 engine", "a2 engine", "b2 engine"]
    assert "gone engine" not in log


class WarningEngine(ToyEngine):
    """An engine whose libraries warn, from Python and from C, and one of which changes the warning
    filters.
    """

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        warnings.warn("from Python", FutureWarning, stacklevel=1)
        ctypes.pythonapi.PyErr_WarnEx(ctypes.py_object(UserWarning), b"from C", 1)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            super().create_adapter(adapter_id, spec)
        warnings.warn("again", FutureWarning, stacklevel=1)


def test_warnings_fail_no_request(make_api: MakeApi) -> None:
    """The program's warning filters do not affect the engine's thread, and that thread leaves the
    filters unchanged.
    """
    api = make_api(WarningEngine())
    model = api.model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        future = api.create_model(api.session())
        api.wait(future)
        assert "error" not in api.result(future)
        assert list(warnings.filters) == before
        with pytest.raises(FutureWarning):
            warnings.warn("here", FutureWarning, stacklevel=1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        api.wait(api.loss(model, 1))
        warnings.warn("here", UserWarning, stacklevel=1)
    assert [str(one.message) for one in seen] == ["here"]


def test_a_step_that_fails_does_not_end_the_thread(
    make_worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception of a step is logged, and the next step runs."""
    worker, done = make_worker(), threading.Event()

    def fail(_: Any) -> None:
        raise LookupError("a defect of a step")

    worker.submit_task(fail)
    worker.submit_task(lambda _: done.set())
    assert done.wait(10)
    assert "a defect of a step" in caplog.text


def carry_out(worker: Worker, time: Clock, count: int) -> None:
    """Carry out the next steps of a worker, without its thread."""
    for _ in range(count):
        found = worker._take(time.seconds)
        assert found is not None
        worker._carry_out(*found)


def test_training_and_sampling_share_the_time() -> None:
    """Training and sampling get equal time while both have work; idle time is not made up for."""
    time, log = Clock(), list[str]()
    worker = Worker(lambda: "engine", threading.RLock(), time)  # type: ignore[arg-type, return-value]
    tokens = Steps(log, *(f"t{number}" for number in range(11)), time=time, seconds=1.0)
    worker.add(tokens, "sampling")

    def run(count: int) -> list[str]:
        carry_out(worker, time, count)
        return [entry.removesuffix(" engine") for entry in log[-count:]]

    assert run(5) == ["t0", "t1", "t2", "t3", "t4"]
    worker.add(Steps(log, "a0", "a1", time=time, seconds=3.0))
    worker.add(Steps(log, "b0", time=time, seconds=3.0))
    assert run(9) == ["a0", "t5", "t6", "t7", "b0", "t8", "t9", "t10", "a1"]
    assert worker._take(time.seconds) is None


def test_idle_time_is_not_made_up_for() -> None:
    """Training that comes back after a while shares the time with sampling as before, and does not
    catch up.
    """
    time, log = Clock(), list[str]()
    worker = Worker(lambda: "engine", threading.RLock(), time)  # type: ignore[arg-type, return-value]
    training = Steps(log, "a0", time=time, seconds=1.0)
    worker.add(training)
    worker.add(
        Steps(log, *(f"t{number}" for number in range(9)), time=time, seconds=1.0), "sampling"
    )

    def run(count: int) -> list[str]:
        carry_out(worker, time, count)
        return [entry[0] for entry in log[-count:]]

    assert sorted(run(6)) == ["a", *"ttttt"]
    training.names += ["a1", "a2", "a3"]
    assert sorted(run(2)) == sorted(run(2)) == ["a", "t"]


def test_base_models_share_the_time() -> None:
    """A model with many runs gets as much time as one with a single run, and each step gets the
    engine of its model.
    """
    time, log = Clock(), list[str]()
    worker = Worker(lambda: "one", threading.RLock(), time)  # type: ignore[arg-type, return-value]
    for run in range(4):
        worker.add(Steps(log, f"a{run}", f"b{run}", time=time, seconds=1.0))
    worker.add(
        Steps(log, *(f"t{number}" for number in range(4)), time=time, seconds=1.0),
        "training 1",
        lambda: "two",
    )  # type: ignore[arg-type, return-value]
    carry_out(worker, time, 8)
    assert sorted(log) == [
        *(f"a{run} one" for run in range(4)),
        *(f"t{number} two" for number in range(4)),
    ]
    assert [entry[-3:] for entry in log] == ["two", "one"] * 4


def test_an_engine_that_does_not_open_is_tried_again(make_worker: Any) -> None:
    """The engine is opened once, by the first step that needs it; a failed attempt fails that step
    only.
    """
    attempts: list[int] = []

    def open_engine() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise RuntimeError("not yet")
        return "engine"

    worker, log = make_worker(open_engine), list[str]()

    def careful(open_it: Callable[[], Any]) -> None:
        try:
            log.append(open_it())
        except RuntimeError as error:
            log.append(str(error))

    for _ in range(3):
        worker.submit_task(careful)
    finished(worker)
    assert log == ["not yet", "engine", "engine"]
    assert len(attempts) == 2


def test_a_stopped_thread_refuses_what_it_has_not_begun(make_worker: Any) -> None:
    """A stopped thread gives tasks that did not run an engine that refuses, and signals its end,
    started or not.
    """
    worker, log = make_worker(), list[str]()
    running, release = threading.Event(), threading.Event()

    def long(open_engine: Any) -> None:
        running.set()
        release.wait(10)
        log.append("finished")

    worker.submit_task(long)
    assert running.wait(10)
    worker.submit_task(lambda open_engine: log.append(f"{open_engine()}"))
    worker.add(Steps(log, "never"))
    worker.stop(lambda: "refused")
    assert log == ["refused"]
    assert worker.closed.outcome is None
    release.set()
    worker.join()
    assert log == ["refused", "finished"]
    assert worker.closed.outcome == WORKER_CLOSED
    idle = make_worker()
    idle.stop(lambda: "refused")
    assert idle.closed.outcome == WORKER_CLOSED
    idle.notify()
    idle.join()


def test_a_future_is_resolved_once() -> None:
    """The first outcome stays."""
    future = ServerFuture("f")
    assert future.resolve(Done("a"))
    assert not future.resolve(Done("b"))
    assert future.outcome == Done("a")


class ExpectingEngine:
    """An engine that notes what it expects, and what is computed."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def expect_losses(self, calls: Any) -> None:
        self.seen.append(list(calls))


def small(futures: FutureStore, name: str, shape: tuple[int, int]) -> ModelTask:
    def run(engine: Any) -> Any:
        engine.seen.append(name)
        return Done(name)

    loss: Any = SmallLoss(shape, lambda _: name)  # type: ignore[arg-type, return-value]
    return ModelTask(
        futures.open(ServerFuture(name, name.encode())), run, "forward_backward", 1, small=loss
    )


def test_small_losses_run_together(futures: FutureStore) -> None:
    """Those of several models that come next and have one shape are one step; each other request is
    its own, in its order.
    """
    peers = WeakKeyDictionary[ModelQueue, None]()
    a, b, c, d = queues = [ModelQueue(futures, 10.0, peers) for _ in range(4)]
    for queue in queues:
        queue.start_at(1)
    a.put(1, small(futures, "a1", (1, 64)), 0.0)
    a.put(2, small(futures, "a2", (1, 64)), 0.0)
    b.put(1, work(futures, "b1"), 0.0)
    b.put(2, small(futures, "b2", (1, 64)), 0.0)
    c.put(1, small(futures, "c1", (1, 64)), 0.0)
    c.put(3, small(futures, "c3", (1, 64)), 0.0)
    d.put(1, small(futures, "d1", (2, 64)), 0.0)
    engine: Any = ExpectingEngine()
    step = a.take(0.0)
    assert step is not None
    step(lambda: engine)
    assert engine.seen == [["a1", "c1"], "a1", "c1", []]
    assert c.describe_gap() is not None
    engine.seen.clear()
    while (
        step := next((step for queue in queues if (step := queue.take(0.0)) is not None), None)
    ) is not None:
        step(lambda: engine)
    assert engine.seen == ["a2", "b2", "d1"]
