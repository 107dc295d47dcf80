"""Sample requests of all clients, token by token: they join and leave what is being sampled between two steps."""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable

import attrs

from tinker.local.engines.protocol import SampleBatch, SampleJob, Sampler, SampleResult
from tinker.local.scheduling.steps import OpenSampler, SampleStep, to_failure
from tinker.local.storage.futures import FutureStore, RequestFailure, RequestResult, ServerFuture, do_nothing


@attrs.frozen(eq=False)
class SampleTask:
    """One sample request: ``job`` makes the engine's job, ``result`` converts the engine's result.

    ``end`` returns why nobody wants it any more, None while somebody does; it is asked before each step. ``prompt_tokens``
    is its size when it begins, over all its samples. Tasks with a lower ``priority`` begin first.
    """

    future: ServerFuture
    job: Callable[[Sampler], SampleJob]
    result: Callable[[SampleResult], RequestResult]
    end: Callable[[], RequestFailure | None] = do_nothing
    prompt_tokens: int = 0
    priority: int = 0


class SampleQueue:
    """Sample requests in order of priority, then of arrival, as many at once as ``batch_tokens`` allows, at least one.

    A sample that runs for more than ``seconds`` fails. A future that has an outcome already, because its client cancelled it,
    is worked on no more.
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
            self._fail_all(error)
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
        """Return the next request that fits in addition to the running ones; None if there is none."""
        with self._lock:
            if not self._queue or (self._running and not self._has_room(self._queue[0])):
                return None
            return self._queue.pop(0)

    def _has_room(self, sampling: SampleTask) -> bool:
        """Return whether its prompt fits in addition to the tokens held now."""
        held = 0 if self._batch is None else self._batch.tokens
        return held + sampling.prompt_tokens <= self._batch_tokens

    # Requests that end

    def _drop_unwanted(self, now: float) -> None:
        for sampling in [sampling for sampling, until in self._running.items() if self._is_over(sampling, until, now)]:
            del self._running[sampling]
            if self._batch is not None:
                self._batch.drop(sampling)

    def _is_over(self, sampling: SampleTask, until: float, now: float) -> bool:
        """Return whether the request is no longer wanted; its future then has an outcome."""
        failure = sampling.end()
        if failure is None and now > until:
            failure = RequestFailure(f"the sample took more than {self._seconds:g} s (sample_seconds)", "user")
        if failure is not None:
            self._futures.resolve(sampling.future, failure)
        return sampling.future.outcome is not None

    def _finish(self, sampling: SampleTask, outcome: SampleResult | Exception) -> None:
        try:
            self._futures.resolve(sampling.future, _convert(sampling, outcome))
        except Exception as error:  # noqa: BLE001 - the error of one request must not touch the others
            self._futures.resolve(sampling.future, to_failure(error))

    def _fail_all(self, error: Exception) -> None:
        """Fail everything that runs; the next request gets a new batch."""
        failure = to_failure(error)
        running, self._running, self._batch = self._running, {}, None
        for sampling in running:
            self._futures.resolve(sampling.future, failure)


def _convert(sampling: SampleTask, outcome: SampleResult | Exception) -> RequestResult | RequestFailure:
    return to_failure(outcome) if isinstance(outcome, Exception) else sampling.result(outcome)
