"""Sample requests of all clients, several at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from tinker.local.engines import Engine, EngineError, SampleJob, SampleResult
from tinker.local.scheduling.steps import OpenEngine, Step, to_failure
from tinker.local.storage import FutureStore, RequestResult, ServerFuture


def _do_nothing() -> None:
    return None


@attrs.frozen(eq=False)
class SampleTask:
    """One sample request: ``tokens`` is its size, ``job`` makes the engine's job, ``result`` converts the engine's result.

    ``begin`` is called whenever the engine begins with it, which may be more than once.
    """

    future: ServerFuture
    tokens: int
    job: Callable[[Engine], SampleJob]
    result: Callable[[SampleResult], RequestResult]
    begin: Callable[[], None] = _do_nothing


class SampleQueue:
    """Sample requests in order of arrival, as many at once as ``batch_tokens`` allows, at least one."""

    def __init__(self, futures: FutureStore, batch_tokens: int) -> None:
        self._futures, self._batch_tokens = futures, batch_tokens
        self._queue: deque[SampleTask] = deque()

    def put(self, sampling: SampleTask) -> None:
        self._queue.append(sampling)

    def drop(self, future: ServerFuture) -> None:
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

    def next_wake(self) -> float | None:
        return None

    def _sample(self, batch: list[SampleTask], open_engine: OpenEngine) -> None:
        ready: list[tuple[SampleTask, SampleJob]] = []
        for sampling in batch:
            self._futures.start(sampling.future)
            try:
                ready.append((sampling, sampling.job(open_engine())))
            except Exception as error:  # noqa: BLE001 - the error of one request must not touch the others
                self._futures.resolve(sampling.future, to_failure(error))
        if ready:
            self._run(ready, open_engine)

    def _run(self, ready: list[tuple[SampleTask, SampleJob]], open_engine: OpenEngine) -> None:
        """Sample a batch. The fault of one job fails the whole batch in the engine, so after one each job runs alone."""
        try:
            for sampling, _ in ready:
                sampling.begin()
            results = open_engine().sample([job for _, job in ready])
            outcomes = [sampling.result(result) for (sampling, _), result in zip(ready, results, strict=True)]
        except EngineError as error:
            if len(ready) > 1:
                for one in ready:
                    self._run([one], open_engine)
            else:
                self._futures.resolve(ready[0][0].future, to_failure(error))
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, the server lives on
            failure = to_failure(error)
            for sampling, _ in ready:
                self._futures.resolve(sampling.future, failure)
        else:
            for (sampling, _), outcome in zip(ready, outcomes, strict=True):
                self._futures.resolve(sampling.future, outcome)
