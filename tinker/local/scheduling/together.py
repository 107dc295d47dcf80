"""Samples of an engine in which they cannot join and leave: those that wait run together, to the end of the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinker.local.engines import Engine, EngineError, SampleJob, SampleResult

Outcomes = list[tuple[object, SampleResult | Exception]]


class TogetherBatch:
    """Whatever was added since the last step is done by the next one. ``begin`` is told of each job that begins."""

    def __init__(self, engine: Engine, begin: Callable[[object], None]) -> None:
        self._engine, self._begin = engine, begin
        self._jobs: dict[object, SampleJob] = {}

    @property
    def tokens(self) -> int:
        return 0

    def add(self, ticket: object, job: SampleJob) -> None:
        self._jobs[ticket] = job

    def drop(self, ticket: object) -> None:
        self._jobs.pop(ticket, None)

    def step(self) -> Outcomes:
        jobs, self._jobs = self._jobs, {}
        return self._sample(list(jobs.items()))

    def _sample(self, jobs: Sequence[tuple[object, SampleJob]]) -> Outcomes:
        """Sample a batch. The fault of one job fails the whole batch in the engine, so after one each job runs alone."""
        try:
            for ticket, _ in jobs:
                self._begin(ticket)
            results = self._engine.sample([job for _, job in jobs])
            return [(ticket, result) for (ticket, _), result in zip(jobs, results, strict=True)]
        except Exception as error:
            if len(jobs) == 1:
                return [(jobs[0][0], error)]
            if not isinstance(error, EngineError):
                raise
            return [outcome for one in jobs for outcome in self._sample([one])]
