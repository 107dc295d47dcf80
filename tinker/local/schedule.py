"""Who runs next: one engine thread, one lane for each model, one for all samples.

A lane hands out steps; the thread takes one from each lane in turn, so that no model starves another. Everything here is
guarded by the server's lock, which is never held while a step runs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import attrs

from tinker.local.engines.protocol import Engine, EngineError, SampleJob, SampleResult
from tinker.local.futures import Failure, Future, Futures, Result
from tinker.local.problem import exists

OpenEngine: TypeAlias = Callable[[], Engine]
Step: TypeAlias = Callable[[OpenEngine], None]

ENDED = Failure("the engine's thread has ended", "server")

log: logging.Logger = logging.getLogger("tinker.local")


class Lane(Protocol):
    """A source of steps."""

    def take(self, now: float) -> Step | None:
        """The next step that may run now."""
        ...

    def wakes_at(self) -> float | None:
        """When a step may become ready by itself."""
        ...


def failure_of(error: Exception) -> Failure:
    """What a user is told; an unexpected error is logged with its traceback."""
    if isinstance(error, EngineError):
        return Failure(str(error), "user")
    log.error("the engine failed", exc_info=error)
    return Failure(f"{type(error).__name__}: {error}", "server")


@attrs.frozen(eq=False)
class Work:
    """One request of a model: what to do with the engine, and the future its result goes to."""

    future: Future
    run: Callable[[Engine], Result]

    def step(self, futures: Futures, open_engine: OpenEngine) -> None:
        """Run and resolve."""
        futures.start(self.future)
        try:
            outcome: Result | Failure = self.run(open_engine())
        except Exception as error:  # noqa: BLE001 - whatever an engine raises belongs to this request alone
            outcome = failure_of(error)
        futures.resolve(self.future, outcome)


class NumberedLane:
    """The requests of one model in the order of their numbers, from 0 (its creation) on.

    A number that is missing holds back the ones behind it for ``gap_seconds`` and is then given up.
    """

    def __init__(self, futures: Futures, gap_seconds: float) -> None:
        self._futures, self._gap_seconds = futures, gap_seconds
        self._next = 0
        self._waiting: dict[int, Work | None] = {}
        self._gap_ends: float | None = None
        self._leftovers: Failure | None = None
        self._last: Step | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether nothing but the model's creation has been submitted."""
        return self._next <= 1 and not self._waiting.keys() - {0}

    def number(self, given: int | None) -> int:
        """The number of a request: the one given (0 and None are none), else the next free one."""
        return given or max(self._next, *(number + 1 for number in self._waiting), 1)

    def require_free(self, number: int) -> None:
        """Problem 409 when the number is used up: given up, or refused before."""
        if number < self._next or number in self._waiting:
            raise exists(f"seq_id {number} comes too late: this model has gone on to {self._next}; use a new seq_id")

    def put(self, number: int, work: Work, now: float) -> None:
        """Queue a request under a free number."""
        self._waiting[number] = work
        work.future.progress = self.missing
        self._watch(now)

    def skip(self, number: int, now: float) -> None:
        """A request of this number was refused: those behind it need not wait."""
        if number >= self._next and number not in self._waiting:
            self._waiting[number] = None
            self._watch(now)

    def take(self, now: float) -> Step | None:
        if self._gap_ends is not None and now >= self._gap_ends:
            self._next = min(self._waiting)
        while self._next in self._waiting:
            work = self._waiting.pop(self._next)
            self._next += 1
            self._gap_ends = None
            self._watch(now)
            if work is not None:
                return lambda open_engine: work.step(self._futures, open_engine)
        return self._end() if self._last is not None else None

    def wakes_at(self) -> float | None:
        return self._gap_ends

    def close(self, leftovers: Failure, last: Step) -> None:
        """No more requests: run those that can run, fail the rest with ``leftovers``, then take the step ``last``."""
        self._leftovers, self._last = leftovers, last

    def _end(self) -> Step | None:
        for work in self._waiting.values():
            if work is not None and self._leftovers is not None:
                self._futures.resolve(work.future, self._leftovers)
        self._waiting.clear()
        self._gap_ends = None
        last, self._last = self._last, None
        return last

    def missing(self) -> str | None:
        """Says so when everything here waits for a number that has not arrived."""
        if self._gap_ends is None:
            return None
        return f"waiting for the request with seq_id {self._next} of this model, which has not arrived"

    def _watch(self, now: float) -> None:
        if not self._waiting or self._next in self._waiting:
            self._gap_ends = None
        elif self._gap_ends is None:
            self._gap_ends = now + self._gap_seconds


@attrs.frozen(eq=False)
class Sampling:
    """One sample request: ``tokens`` is its size, ``job`` makes the engine's job, ``result`` turns around what it answers."""

    future: Future
    tokens: int
    job: Callable[[Engine], SampleJob]
    result: Callable[[SampleResult], Result]


class SampleLane:
    """Sample requests in order of arrival, as many at once as ``batch_tokens`` allows, at least one."""

    def __init__(self, futures: Futures, batch_tokens: int) -> None:
        self._futures, self._batch_tokens = futures, batch_tokens
        self._queue: deque[Sampling] = deque()

    def put(self, sampling: Sampling) -> None:
        self._queue.append(sampling)

    def drop(self, future: Future) -> None:
        """Take a request out that has not begun."""
        self._queue = deque(sampling for sampling in self._queue if sampling.future is not future)

    def take(self, now: float) -> Step | None:
        if not self._queue:
            return None
        batch = [self._queue.popleft()]
        tokens = batch[0].tokens
        while self._queue and tokens + self._queue[0].tokens <= self._batch_tokens:
            tokens += self._queue[0].tokens
            batch.append(self._queue.popleft())
        return lambda open_engine: self._sample(batch, open_engine)

    def wakes_at(self) -> float | None:
        return None

    def _sample(self, batch: list[Sampling], open_engine: OpenEngine) -> None:
        ready: list[tuple[Sampling, SampleJob]] = []
        for sampling in batch:
            self._futures.start(sampling.future)
            try:
                ready.append((sampling, sampling.job(open_engine())))
            except Exception as error:  # noqa: BLE001 - the error of one request must not touch the others
                self._futures.resolve(sampling.future, failure_of(error))
        if ready:
            self._run(ready, open_engine)

    def _run(self, ready: list[tuple[Sampling, SampleJob]], open_engine: OpenEngine) -> None:
        """A fault of one job fails the whole batch in the engine, so after one each job runs alone."""
        try:
            results = open_engine().sample([job for _, job in ready])
            outcomes = [sampling.result(result) for (sampling, _), result in zip(ready, results, strict=True)]
        except EngineError as error:
            if len(ready) > 1:
                for one in ready:
                    self._run([one], open_engine)
            else:
                self._futures.resolve(ready[0][0].future, failure_of(error))
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, the server lives on
            failure = failure_of(error)
            for sampling, _ in ready:
                self._futures.resolve(sampling.future, failure)
        else:
            for (sampling, _), outcome in zip(ready, outcomes, strict=True):
                self._futures.resolve(sampling.future, outcome)


class Chore:
    """A lane that has no steps: it does something itself every ``seconds``, while there is a ``need`` for it."""

    def __init__(self, seconds: float, need: Callable[[], bool], work: Callable[[], None]) -> None:
        self._seconds, self._need, self._work = seconds, need, work
        self._due: float | None = None

    def take(self, now: float) -> Step | None:
        if not self._need():
            self._due = None
        elif self._due is None:
            self._due = now + self._seconds
        elif now >= self._due:
            self._due = now + self._seconds
            self._work()
        return None

    def wakes_at(self) -> float | None:
        return self._due


class Worker:
    """The engine's thread. Started by the first step, ended by :meth:`close`; the engine is opened in it, on first use."""

    def __init__(self, open_engine: OpenEngine, lock: threading.RLock, clock: Callable[[], float]) -> None:
        self._open, self._clock = open_engine, clock
        self._wake = threading.Condition(lock)
        self._lanes: deque[Lane] = deque()
        self._errands: deque[Step] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.ended: Future = Future("the engine's thread")
        self.engine: Engine | None = None

    def add(self, lane: Lane) -> None:
        """Serve one more lane."""
        with self._wake:
            self._lanes.append(lane)

    def remove(self, lane: Lane) -> None:
        """Serve it no more; what waits in it never runs."""
        with self._wake:
            if lane in self._lanes:
                self._lanes.remove(lane)

    def errand(self, step: Step) -> None:
        """Run a step of no lane, before any other."""
        with self._wake:
            self._errands.append(step)
            self.notify()

    def notify(self) -> None:
        """Something was put into a lane."""
        with self._wake:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="tinker-engine", daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self, refuse: OpenEngine) -> None:
        """Take no further step; the one that runs is finished. Errands that did not run are given ``refuse`` as engine."""
        with self._wake:
            self._closing = True
            errands, self._errands = self._errands, deque()
            self._wake.notify()
            if self._thread is None:
                self.ended.resolve(ENDED)
        for step in errands:
            step(refuse)

    def join(self) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None:
            self._thread.join()

    def open_engine(self) -> Engine:
        """The engine; only in this thread. A failed attempt is repeated by the next step."""
        if self.engine is None:
            self.engine = self._open()
        return self.engine

    def _run(self) -> None:
        try:
            while (step := self._next()) is not None:
                step(self.open_engine)
        finally:
            self.ended.resolve(ENDED)

    def _next(self) -> Step | None:
        with self._wake:
            while not self._closing:
                if self._errands:
                    return self._errands.popleft()
                now = self._clock()
                for _ in range(len(self._lanes)):
                    lane = self._lanes[0]
                    self._lanes.rotate(-1)
                    if (step := lane.take(now)) is not None:
                        return step
                times = [at for lane in self._lanes if (at := lane.wakes_at()) is not None]
                self._wake.wait(max(0.0, min(times) - now) if times else None)
            return None
