"""The order of work: a queue for each model, one for samples, and the engine's thread."""

from __future__ import annotations

import bisect
import math
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import attrs
from tinker_wire.api import training, weights

from tinker.local.call import APIProblem, conflict, log
from tinker.local.engines import check_distinct
from tinker.local.engines.protocol import (
    Engine,
    EngineError,
    SampleBatch,
    SampleJob,
    Sampler,
    SampleResult,
    is_out_of_memory,
)
from tinker.local.storage.futures import (
    FutureStore,
    RequestFailure,
    RequestResult,
    ServerFuture,
    do_nothing,
)
from tinker.local.storage.sessions import ModelTask, SmallLoss

Opened = TypeVar("Opened")
Opened_contra = TypeVar("Opened_contra", contravariant=True)
Open: TypeAlias = Callable[[], Opened]
WorkerStep: TypeAlias = Callable[[Open[Opened]], None]
OpenEngine: TypeAlias = Open[Engine]
OpenSampler: TypeAlias = Open[Sampler]
EngineStep: TypeAlias = WorkerStep[Engine]
SampleStep: TypeAlias = WorkerStep[Sampler]


class ModelNotLoaded(Exception):
    """A base model cannot be loaded, for a reason that the message gives."""


class StepQueue(Protocol[Opened_contra]):
    """A source of steps, each of which opens the engine or sampler that it works with."""

    def take(self, now: float) -> WorkerStep[Opened_contra] | None:
        """Return the next step that may run now."""
        ...

    def next_wake(self) -> float | None:
        """Return when a step may become ready by itself."""
        ...


class PrecedingFailure(Exception):
    """A request is not run, because ``operation`` failed before it."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"the {operation} before it failed: {reason}")
        self.operation = operation


def to_failure(error: Exception) -> RequestFailure:
    """Return the failure reported to the user; log an unexpected error with its traceback."""
    if isinstance(error, EngineError):
        return RequestFailure(str(error), "user")
    if isinstance(error, PrecedingFailure):
        return RequestFailure(str(error), "user", error.operation)
    if isinstance(error, ModelNotLoaded):
        log.error("%s", error)
        return RequestFailure(str(error), "server")
    if is_out_of_memory(error):
        log.error("the server has too little memory for a request: %s", error)
        return RequestFailure(
            f"the server has too little memory for this request; ask for less at once ({error})",
            "user",
        )
    log.error("the engine failed", exc_info=error)
    return RequestFailure(f"{type(error).__name__}: {error}", "server")


#: Operations that change a run: a later request counts on them.
TRAINING = frozenset(
    one.__name__ for one in (training.forward_backward, training.optim_step, weights.load_weights)
)


@attrs.frozen
class _Failure:
    """The last request that changes the run and failed by itself."""

    number: int
    operation: str
    reason: str


class ModelQueue:
    """The requests of one model in the order of their numbers, from 0 (its creation) on.

    ``fault`` says why the last one failed; None if it did not.

    A number that is missing holds back the ones behind it for ``gap_seconds`` and is then given up.
    A small loss is computed together with those of its ``peers``, the queues of the engine's
    models.
    """

    def __init__(
        self,
        futures: FutureStore,
        gap_seconds: float,
        peers: WeakKeyDictionary[ModelQueue, None] | None = None,
    ) -> None:
        self._futures, self._gap_seconds = futures, gap_seconds
        self._peers = WeakKeyDictionary[ModelQueue, None]() if peers is None else peers
        self._peers[self] = None
        self._next = self._settled = 0
        self._waiting: dict[int, ModelTask | _Failure | None] = {}
        self._left_out: set[int] = set()
        self._gap_ends: float | None = None
        self._failure: RequestFailure | None = None
        self._last_step: EngineStep | None = None
        self._running: ModelTask | None = None
        self._last_failure: _Failure | None = None
        self._last_refusal: tuple[int, bytes, APIProblem] | None = None
        self.fault: str | None = None

    @property
    def is_fresh(self) -> bool:
        """Return whether nothing but the model's creation has been submitted."""
        return self._next <= 1 and not self._waiting.keys() - {0}

    def start_at(self, number: int) -> None:
        """Start at this number, as the requests before it are done."""
        self._next = number

    def settle(self, number: int, now: float) -> None:
        """Give up the numbers before this one that are missing, as an earlier process did."""
        self._settled, self._gap_ends = number, None
        self._update_gap(now)

    def assign_number(self, number: int | None) -> int:
        """Return the number, or the next free one where it is missing or 0."""
        return number or max(self._next, *(number + 1 for number in self._waiting), 1)

    def require_free(self, number: int, request: bytes = b"") -> None:
        """Raise APIProblem 409 if the number was skipped or used before; for the last refused
        request, its refusal again.
        """
        if self._last_refusal is not None and self._last_refusal[:2] == (number, request):
            raise self._last_refusal[2].with_traceback(None)  # its answer was lost
        if number < (first := max(self._next, self._settled)) or number in self._waiting:
            raise conflict(
                f"seq_id {number} is stale: the next one of this model is {first}",
                "seq_id_used",
            )

    def put(self, number: int, work: ModelTask, now: float) -> None:
        """Queue a request under a free number."""
        self._waiting[number] = work
        self._left_out.discard(number)
        self._update_gap(now)

    def skip(
        self, number: int, now: float, operation: str = "", failure: RequestFailure | None = None
    ) -> None:
        """Skip this number, whose request a proxy refused, or an earlier process ran, with this
        failure if it failed.
        """
        if number >= self._next and number not in self._waiting:
            self._waiting[number] = (
                None if failure is None else _find_cause(number, operation, failure)
            )
            self._update_gap(now)

    def leave_out(self, number: int) -> None:
        """Let a free number hold nothing back: a later request runs without it, unless it comes
        first.
        """
        self._left_out.add(number)

    def refuse(self, number: int, request: bytes, problem: APIProblem, now: float) -> None:
        """Skip this number, whose request was refused; ``request`` is its fingerprint."""
        if number >= self._next and number not in self._waiting:
            self._last_refusal = number, request, problem
        self.skip(number, now)

    def take(self, now: float) -> EngineStep | None:
        """Return the next step that may run now."""
        if self._gap_ends is not None and now >= self._gap_ends:
            self._next = min(self._waiting)
        while self._next in self._waiting:
            work = self._waiting.pop(self._next)
            self._next += 1
            self._gap_ends = None
            self._update_gap(now)
            if isinstance(work, _Failure):
                self._last_failure = work
            elif work is not None:
                self._choose(work)
                return (
                    partial(self._run, work)
                    if work.small is None
                    else self._join(work, work.small, now)
                )
        return self._end() if self._last_step is not None else None

    def _choose(self, work: ModelTask) -> None:
        is_next = self._running is not None and work.number == self._running.number + 1
        self._futures.choose(work.future, is_next=is_next)
        self._running = work

    def _join(self, first: ModelTask, small: SmallLoss, now: float) -> EngineStep:
        """Return the step of a small loss, with those of other models that come next there and have
        the same shape.
        """
        peers = [peer for peer in self._peers if peer is not self]
        ready = [
            (peer, work)
            for peer in peers
            if (work := peer._take_small(small.shape, now)) is not None
        ]

        def run(open_engine: OpenEngine) -> None:
            parts = [(self, first), *ready]
            if ready:
                _expect([work for _, work in parts], open_engine)
            for queue, work in parts:
                queue._run(work, open_engine)
            if ready:
                open_engine().expect_losses([])

        return run

    def _take_small(self, shape: tuple[int, int], now: float) -> ModelTask | None:
        """Take the next request if it is a small loss of this shape."""
        work = self._waiting.get(self._next)
        if not isinstance(work, ModelTask) or work.small is None or work.small.shape != shape:
            return None
        del self._waiting[self._next]
        self._next += 1
        self._update_gap(now)
        self._choose(work)
        return work

    def _run(self, work: ModelTask, open_engine: OpenEngine) -> None:
        self._futures.start(work.future)
        try:
            outcome: RequestResult | RequestFailure = work.execute(open_engine())
            self.fault = None
        except Exception as error:  # noqa: BLE001 - whatever an engine raises belongs to this request alone
            outcome = to_failure(error)
            self.fault = outcome.error
            self._last_failure = (
                _find_cause(work.number, work.operation, outcome) or self._last_failure
            )
        self._futures.resolve(work.future, outcome)

    def require_success(self) -> None:
        """Raise PrecedingFailure if the running request follows a failure that its client has not
        seen.
        """
        running, failure = self._running, self._last_failure
        if running is None or running.known_failure is None or failure is None:
            return
        if running.known_failure < failure.number < running.number:
            raise PrecedingFailure(failure.operation, failure.reason)

    def next_wake(self) -> float | None:
        """Return when a step may become ready by itself."""
        return self._gap_ends

    def close(self, failure: RequestFailure, last_step: EngineStep) -> None:
        """Run the requests that can run, fail the rest with ``failure``, then take the step
        ``last_step``.
        """
        self._failure, self._last_step = failure, last_step

    def _end(self) -> EngineStep | None:
        for work in self._waiting.values():
            if isinstance(work, ModelTask) and self._failure is not None:
                self._futures.resolve(work.future, self._failure)
        self._waiting.clear()
        self._gap_ends = None
        last, self._last_step = self._last_step, None
        return last

    def describe_gap(self) -> str | None:
        """Describe the number that every request here waits for; None when they do not."""
        if self._gap_ends is None:
            return None
        return (
            f"waiting for the request with seq_id {self._next} of this model, which has not arrived"
        )

    def _update_gap(self, now: float) -> None:
        while self._next in self._left_out and max(self._waiting, default=0) > self._next:
            self._left_out.remove(self._next)
            self._next += 1
        if not self._waiting or self._next in self._waiting:
            self._gap_ends = None
        elif self._gap_ends is None:
            self._gap_ends = now + (self._gap_seconds if self._next >= self._settled else 0.0)


def _expect(tasks: Sequence[ModelTask], open_engine: OpenEngine) -> None:
    """Let the engine prepare small losses; whatever is wrong with one is found again, by itself."""
    try:
        engine = open_engine()
        engine.expect_losses(
            [work.small.expect(engine) for work in tasks if work.small is not None]
        )
    except Exception as error:  # noqa: BLE001
        log.debug("losses are computed one by one: %s", error)


def _find_cause(number: int, operation: str, failure: RequestFailure) -> _Failure | None:
    """Return the failure of a request if later ones depend on it: one that changes the run, and
    failed by itself.
    """
    is_cause = operation in TRAINING and failure.failed_operation is None
    return _Failure(number, operation, failure.error) if is_cause else None


@attrs.frozen(eq=False)
class SampleTask:
    """One sample request: ``job`` makes the engine's job, ``result`` converts the engine's result.

    ``end`` returns why nobody wants it any more, None while somebody does; it is asked before each
    step. ``prompt_tokens`` is its size when it begins, over all its samples. Tasks with a lower
    ``priority`` begin first.
    """

    future: ServerFuture
    job: Callable[[Sampler], SampleJob]
    result: Callable[[SampleResult], RequestResult]
    end: Callable[[], RequestFailure | None] = do_nothing
    prompt_tokens: int = 0
    priority: int = 0


class SampleQueue:
    """Sample requests in order of priority, then of arrival, as many at once as ``batch_tokens``
    allows, at least one.

    A sample that runs for more than ``seconds`` fails. A future that has an outcome already,
    because its client cancelled it, is worked on no more.
    """

    def __init__(self, futures: FutureStore, batch_tokens: int, seconds: float = math.inf) -> None:
        self._futures, self._batch_tokens, self._seconds = futures, batch_tokens, seconds
        self._lock = threading.Lock()  # requests arrive while a step runs
        self._queue: list[SampleTask] = []
        self._running: dict[SampleTask, float] = {}  # with the time at which each must be done
        self._batch: SampleBatch | None = None

    def put(self, sampling: SampleTask) -> None:
        with self._lock:
            bisect.insort(self._queue, sampling, key=lambda one: one.priority)

    def drop(self, future: ServerFuture) -> None:
        """Take a request out that has not begun."""
        with self._lock:
            self._queue = [sampling for sampling in self._queue if sampling.future is not future]

    @property
    def waiting(self) -> int:
        """Return how many requests have not begun."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Return how many requests are being sampled."""
        return len(self._running)

    def take(self, now: float) -> SampleStep | None:
        if not self._queue and not self._running:
            return None
        return lambda open_sampler: self._step(now, open_sampler)

    def next_wake(self) -> float | None:
        return None

    def _step(self, now: float, open_sampler: OpenSampler) -> None:
        try:
            self._drop_unwanted(now)
            self._admit(now, open_sampler)
            finished = self._batch.step() if self._batch is not None and self._running else []
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, the server lives on
            failure = to_failure(error)
            running, self._running, self._batch = self._running, {}, None
            for sampling in running:
                self._futures.resolve(sampling.future, failure)
        else:
            for ticket, outcome in finished:
                if isinstance(ticket, SampleTask) and self._running.pop(ticket, None) is not None:
                    self._finish(ticket, outcome)

    # Requests that begin

    def _admit(self, now: float, open_sampler: OpenSampler) -> None:
        while (sampling := self._pop_next()) is not None:
            if self._is_over(sampling, math.inf, now):
                continue
            self._futures.start(sampling.future)
            try:
                sampler = open_sampler()
                self._batch = self._batch or sampler.open_batch(self._batch_tokens)
                self._batch.add(sampling, sampling.job(sampler))
            except Exception as error:  # noqa: BLE001 - the error of one request must not touch the others
                self._futures.resolve(sampling.future, to_failure(error))
            else:
                self._running[sampling] = now + self._seconds

    def _pop_next(self) -> SampleTask | None:
        """Return the next request that fits in addition to the running ones; None
        if there is none.
        """
        with self._lock:
            room = self._batch_tokens - (0 if self._batch is None else self._batch.tokens)
            if not self._queue or (self._running and self._queue[0].prompt_tokens > room):
                return None
            return self._queue.pop(0)

    # Requests that end

    def _drop_unwanted(self, now: float) -> None:
        for sampling in [
            sampling
            for sampling, until in self._running.items()
            if self._is_over(sampling, until, now)
        ]:
            del self._running[sampling]
            if self._batch is not None:
                self._batch.drop(sampling)

    def _is_over(self, sampling: SampleTask, until: float, now: float) -> bool:
        """Return whether the request is no longer wanted; its future then has an outcome."""
        failure = sampling.end()
        if failure is None and now > until:
            failure = RequestFailure(
                f"the sample took more than {self._seconds:g} s (sample_seconds)", "user"
            )
        if failure is not None:
            self._futures.resolve(sampling.future, failure)
        return sampling.future.outcome is not None

    def _finish(self, sampling: SampleTask, outcome: SampleResult | Exception) -> None:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            self._futures.resolve(sampling.future, sampling.result(outcome))
        except Exception as error:  # noqa: BLE001 - the error of one request must not touch the others
            self._futures.resolve(sampling.future, to_failure(error))


class ServedModel:
    """One of the base models, its engine and its sampler, which are None until the thread of each
    has opened it.

    Without ``open_sampler`` the engine is the sampler. Else ``samples`` are for the sampler,
    ``scores`` for the engine all the same.
    """

    def __init__(
        self,
        open_engine: OpenEngine,
        samples: SampleQueue,
        open_sampler: OpenSampler | None = None,
        scores: SampleQueue | None = None,
    ) -> None:
        self._open, self._open_sampler = open_engine, open_sampler
        self.samples = samples
        self.scores: SampleQueue = scores or samples
        # in the order in which they were made
        self.queues: WeakKeyDictionary[ModelQueue, None] = WeakKeyDictionary()
        self.engine: Engine | None = None
        self.sampler: Sampler | None = None

    @property
    def is_own_sampler(self) -> bool:
        """Return whether the engine samples, in its thread; else the sampler has another one."""
        return self._open_sampler is None

    def open(self) -> Engine:
        """Return the engine; only in the engine's thread. A failed attempt is repeated by the next
        step.

        Raises ModelNotLoaded when something is missing: a package, a file, a device.
        """
        self.engine = self.engine or _load(self._open)
        return self.engine

    def open_sampler(self) -> Sampler:
        """Return the sampler; only in its thread. Raises ModelNotLoaded as :meth:`open` does."""
        self.sampler = self.sampler or (
            self.open() if self._open_sampler is None else _load(self._open_sampler)
        )
        return self.sampler


def _load(open_one: Open[Opened]) -> Opened:
    try:
        return open_one()
    except (ImportError, OSError, ValueError) as error:
        raise ModelNotLoaded(f"the model could not be loaded: {error}") from error


class ServedModels:
    """All of them, the first of which is the default. ``engines`` is empty until
    every one is open.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models: tuple[ServedModel, ...] = tuple(models)
        self.engines: Sequence[Engine] = ()

    def open_all(self, open_first: OpenEngine) -> None:
        """Open every engine, the first one by ``open_first``; only in the engine's thread.
        ValueError for two of one name.
        """
        open_first()
        engines = [model.open() for model in self.models]
        check_distinct(engines)
        self.engines = engines

    def close(self) -> None:
        """End what runs outside this process; all threads have ended."""
        for model in self.models:
            for one in {id(one): one for one in (model.engine, model.sampler)}.values():
                if one is not None:
                    one.close()

    def find(self, engine_model: str) -> ServedModel:
        """Return the base model whose engine, which is open, goes by this name."""
        return next(
            one
            for one in self.models
            if one.engine is not None and one.engine.base_model == engine_model
        )

    def drop_sample(self, future: ServerFuture) -> None:
        """Take a sample out that has not begun."""
        for model in self.models:
            model.samples.drop(future)
            model.scores.drop(future)


WORKER_CLOSED = RequestFailure("the engine's thread has ended", "server")


class PeriodicTask:
    """A queue that calls ``work`` every ``seconds``, while there is a ``need`` for it; what that
    returns is its step.
    """

    def __init__(
        self, seconds: float, need: Callable[[], bool], work: Callable[[], EngineStep | None]
    ) -> None:
        self._seconds, self._need, self._work = seconds, need, work
        self._due: float | None = None

    def take(self, now: float) -> EngineStep | None:
        if not self._need():
            self._due = None
        elif self._due is None:
            self._due = now + self._seconds
        elif now >= self._due:
            self._due = now + self._seconds
            return self._work()
        return None

    def next_wake(self) -> float | None:
        return self._due


class Lane(Generic[Opened]):
    """Queues of one engine that take turns, step by step, and the time that their steps have
    ``used``.
    """

    def __init__(self, open_engine: Open[Opened], used: float = 0.0) -> None:
        self.queues: deque[StepQueue[Opened]] = deque()
        self.open_engine = open_engine
        self.used = used

    def take(self, now: float) -> WorkerStep[Opened] | None:
        for _ in range(len(self.queues)):
            queue = self.queues[0]
            self.queues.rotate(-1)
            if (step := queue.take(now)) is not None:
                return step
        return None


class Worker(Generic[Opened]):
    """The engines' thread, or a sampler's. Lanes with steps get equal shares of its time; an idle
    lane builds up no claim.

    Started by the first step, ended by :meth:`stop`. Lanes and tasks without an engine of their own
    get ``open_engine``.
    """

    def __init__(
        self, open_engine: Open[Opened], lock: threading.RLock, clock: Callable[[], float]
    ) -> None:
        self._open, self._clock = open_engine, clock
        self._wake = threading.Condition(lock)
        self._lanes: dict[str, Lane[Opened]] = {}
        self._tasks: deque[tuple[WorkerStep[Opened], Open[Opened]]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.closed: ServerFuture = ServerFuture("the engine's thread")

    def add(
        self,
        queue: StepQueue[Opened],
        lane: str = "training",
        open_engine: Open[Opened] | None = None,
    ) -> None:
        """Serve one more queue, in turn with the others of its lane, all of which
        have one engine.
        """
        with self._wake:
            if lane not in self._lanes:
                used = max((other.used for other in self._lanes.values()), default=0.0)
                self._lanes = {lane: Lane(open_engine or self._open, used), **self._lanes}
            self._lanes[lane].queues.append(queue)

    def remove(self, queue: StepQueue[Opened]) -> None:
        """Remove a queue; its waiting requests never run."""
        with self._wake:
            for lane in self._lanes.values():
                if queue in lane.queues:
                    lane.queues.remove(queue)

    def submit_task(
        self, step: WorkerStep[Opened], open_engine: Open[Opened] | None = None
    ) -> None:
        """Run a step of no queue, before any other."""
        with self._wake:
            self._tasks.append((step, open_engine or self._open))
            self.notify()

    def notify(self) -> None:
        """Wake the thread, or start it: a queue has a step."""
        with self._wake:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="tinker-engine", daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self, on_pending: Open[Opened]) -> None:
        """Stop after the running step. Tasks that did not run are called with ``on_pending`` as
        engine.
        """
        with self._wake:
            self._closing = True
            tasks, self._tasks = self._tasks, deque()
            self._wake.notify()
            if self._thread is None:
                self.closed.resolve(WORKER_CLOSED)
        for step, _ in tasks:
            step(on_pending)

    def join(self) -> None:
        """Wait for the end of the thread, unless the interpreter ends, which has stopped it."""
        if self._thread is not None and not sys.is_finalizing():
            self._thread.join()

    def _run(self) -> None:
        try:
            with ignore_warnings():
                while (found := self._next()) is not None:
                    self._carry_out(*found)
        finally:
            self.closed.resolve(WORKER_CLOSED)

    def _carry_out(self, lane: Lane[Opened], step: WorkerStep[Opened]) -> None:
        """Take a step, whose time counts for its lane."""
        began = self._clock()
        try:
            step(lane.open_engine)
        except Exception:  # noqa: BLE001 - this thread is the server's only one
            log.exception("internal error in a step; continuing with the next one")
        lane.used += self._clock() - began

    def _next(self) -> tuple[Lane[Opened], WorkerStep[Opened]] | None:
        with self._wake:
            while not self._closing:
                if self._tasks:
                    step, open_engine = self._tasks.popleft()
                    return Lane(open_engine), step
                now = self._clock()
                if (found := self._take(now)) is not None:
                    return found
                times = [
                    at
                    for lane in self._lanes.values()
                    for one in lane.queues
                    if (at := one.next_wake()) is not None
                ]
                self._wake.wait(max(0.0, min(times) - now) if times else None)
            return None

    def _take(self, now: float) -> tuple[Lane[Opened], WorkerStep[Opened]] | None:
        """Take a step from the lane that has used the least; among equals, from the one whose turn
        is the longest ago.
        """
        tried: list[Lane[Opened]] = []
        for name, lane in sorted(self._lanes.items(), key=lambda item: item[1].used):
            if (step := lane.take(now)) is not None:
                for idle in tried:
                    idle.used = lane.used
                self._lanes[name] = self._lanes.pop(name)
                return lane, step
            tried.append(lane)
        return None


IGNORE = ("ignore", None, Warning, None, 0)


class _Thread(threading.local):
    is_ignoring: bool = False


_thread = _Thread()


class _Warnings(ModuleType):
    """The module ``warnings``. Threads that ignore warnings see ``IGNORE`` before the filters of
    the process.
    """

    @property
    def filters(self) -> list[Any]:
        found: list[Any] = vars(self)["filters"]
        return [IGNORE, *found] if _thread.is_ignoring else found

    @filters.setter
    def filters(self, value: list[Any]) -> None:
        vars(self)["filters"] = (
            [one for one in value if one is not IGNORE] if _thread.is_ignoring else value
        )


@contextmanager
def ignore_warnings() -> Generator[None]:
    """Ignore all warnings of this thread inside the block, whatever the filters of the process say.

    With ``warnings.simplefilter("error")`` in a program, a warning of a library would raise in the
    middle of a request of the server in the same process. Filters belong to the process, and the
    program may change them at any moment, so that ``warnings.catch_warnings()`` in this thread
    would not hold, and would disturb the program. Instead, this thread sees one filter more, in
    front of those of the process. That is sound because each warning, of Python and of C code
    alike, looks up the filters as an attribute of the module ``warnings``, which the class of a
    module may compute, and the list of the process never contains the additional one.
    """
    sys.modules[warnings.__name__].__class__ = _Warnings
    _thread.is_ignoring = True
    try:
        yield
    finally:
        _thread.is_ignoring = False
