"""Samples that are spread over the workers: each job goes to the one that holds the fewest tokens.

A job whose worker died is sampled again by the next one, with the same seed, and its listener hears no token twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from tinker.local.engines.inputs import check_job, noise_seed
from tinker.local.engines.protocol import EngineError, SampleJob, SampleResult
from tinker.local.engines.replicas.messages import Files, HeardToken, NewJob, SampleTurn, SampleTurnResult, WorkersLost
from tinker.local.engines.replicas.workers import WorkerCall

if TYPE_CHECKING:
    from tinker.local.engines.replicas.engine import ReplicatedEngine

MOST_DEATHS = 3  # of workers that sample one job


@attrs.frozen(eq=False)
class StoredWeights:
    """Weights to sample from, which every worker has by their number; ``files`` are for workers that start later."""

    number: int
    files: Files


@attrs.define(eq=False)
class SpreadJob:
    """A job at the worker ``rank``, if that has not started again since. ``heard`` counts tokens by sample."""

    ticket: object
    number: int
    job: SampleJob
    rank: int
    process: int = -1
    deaths: int = -1
    heard: Counter[int] = attrs.field(factory=lambda: Counter[int]())
    repeated: Counter[int] = attrs.field(factory=lambda: Counter[int]())

    def send(self, process: int) -> NewJob:
        """Return the message that begins it."""
        self.process, self.deaths, self.repeated = process, self.deaths + 1, self.heard.copy()
        weights = self.job.weights.number if isinstance(self.job.weights, StoredWeights) else None
        bare = attrs.evolve(self.job, weights=None, listener=None)
        return NewJob(number=self.number, job=bare, weights=weights, is_heard=self.job.listener is not None)

    def hear(self, drawn: HeardToken) -> bool:
        """Pass a token on, once; return whether more are wanted."""
        if self.repeated[drawn.index]:
            self.repeated[drawn.index] -= 1
            return True
        self.heard[drawn.index] += 1
        listener = self.job.listener
        return listener is None or listener.take(drawn.index, drawn.token, drawn.logprob, drawn.stop_reason)


class ReplicatedBatch:
    """A SampleBatch of a replicated engine."""

    def __init__(self, engine: ReplicatedEngine, number: int, limit: int) -> None:
        self._engine, self._number, self._limit = engine, number, limit
        self._jobs: dict[int, SpreadJob] = {}
        self._tokens = [0] * len(engine.workers)
        self._dropped: list[list[int]] = [[] for _ in engine.workers.processes]
        self._count = 0

    @property
    def tokens(self) -> int:
        """Return how many tokens are held by the worker that has the most room."""
        return min(self._tokens)

    def add(self, ticket: object, job: SampleJob) -> None:
        check_job(job, vocabulary=self._engine.vocabulary, longest=self._engine.max_context_length)
        if job.weights is not None and not isinstance(job.weights, StoredWeights):
            raise EngineError("the weights to sample from do not come from this engine")
        rank, number = self._tokens.index(min(self._tokens)), self._count
        self._jobs[number] = SpreadJob(ticket, number, attrs.evolve(job, seed=noise_seed(job)), rank)
        self._tokens[rank] += job.num_samples * (len(job.tokens) + 1)
        self._count += 1

    def drop(self, ticket: object) -> None:
        for one in [one for one in self._jobs.values() if one.ticket is ticket]:
            self._forget(one)

    def _forget(self, one: SpreadJob) -> None:
        del self._jobs[one.number]
        self._dropped[one.rank].append(one.number)

    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        ended = self._give_up()
        ranks = sorted({one.rank for one in self._jobs.values()} | {rank for rank, some in enumerate(self._dropped) if some})
        if ranks and self._engine.is_split:
            ranks = list(range(len(self._dropped)))
        turns = {rank: self._next_turn(rank) for rank in ranks}
        outcomes = self._engine.workers.call([WorkerCall(rank, "sample", (turn,)) for rank, turn in turns.items()])
        for rank, outcome in zip(ranks, outcomes, strict=True):
            if isinstance(outcome, SampleTurnResult):
                ended += self._take(rank, outcome)
            elif isinstance(outcome, WorkersLost):
                self._send_again(rank, turns[rank])
        for failure in (one for one in outcomes if isinstance(one, Exception)):
            if not isinstance(failure, WorkersLost):
                raise failure
            self._engine.repair(failure)
            break
        return ended

    def _give_up(self) -> list[tuple[object, SampleResult | Exception]]:
        """End the jobs whose workers died too often."""
        left = [one for one in self._jobs.values() if one.deaths >= MOST_DEATHS - 1]
        hopeless = [one for one in left if one.process != self._engine.count_starts(one.rank)]
        for one in hopeless:
            self._forget(one)
        return [(one.ticket, WorkersLost(f"{MOST_DEATHS} workers died while they sampled this")) for one in hopeless]

    def _next_turn(self, rank: int) -> SampleTurn:
        process = self._engine.count_starts(rank)
        new = [one.send(process) for one in self._jobs.values() if one.rank == rank and one.process != process]
        dropped, self._dropped[rank] = self._dropped[rank], []
        return SampleTurn(batch=self._number, limit=self._limit, new=new, dropped=dropped)

    def _send_again(self, rank: int, turn: SampleTurn) -> None:
        """Begin the jobs of a lost turn anew: its worker may live, and has them or has ended them."""
        lost = [one for one in self._jobs.values() if one.rank == rank]
        self._dropped[rank] = [*turn.dropped, *(one.number for one in lost)]
        for one in lost:
            one.process = -1

    def _take(self, rank: int, result: SampleTurnResult) -> list[tuple[object, SampleResult | Exception]]:
        self._tokens[rank] = result.tokens
        unwanted = {one.number for one in result.drawn if one.number in self._jobs and not self._jobs[one.number].hear(one)}
        ended = [(self._jobs.pop(number).ticket, outcome) for number, outcome in result.ended if number in self._jobs]
        for one in [self._jobs[number] for number in unwanted if number in self._jobs]:
            self._forget(one)
            ended.append((one.ticket, EngineError("its listener has ended it")))
        return ended
