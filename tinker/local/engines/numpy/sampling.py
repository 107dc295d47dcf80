"""Samples in progress: prompts go through the model together, and then their sequences token by
token, with a cache.

The rows of one adapter share a cache, whatever their lengths. A step draws one token of each row,
and lets waiting ones in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tinker.local.engines.arrays import ArrayWeights, compute_in_one_thread, find_weights
from tinker.local.engines.numpy.llama import Cache, Llama, Matrices, pad
from tinker.local.engines.protocol import Float32, SampleJob, SampleResult
from tinker.local.engines.runs import (
    DecodingRun,
    PromptScorer,
    Work,
    extend,
    log_softmax,
    needs_table,
    split_batches,
)

PROMPT_CELLS = 512  # tokens of prompts that go through the model together, padding included
Begin = tuple[Work, DecodingRun]  # a run that begins, and its job


class Rows:
    """Runs with one adapter, a row of the cache for each, which has all of their tokens but the
    last one.
    """

    def __init__(self, model: Llama, matrices: Matrices) -> None:
        self._model, self._matrices = model, matrices
        self._cache = Cache(model.shape, 0, 0)
        self.runs: list[DecodingRun] = []

    def advance(self) -> None:
        """Draw the next token of every run."""
        last = np.array([[run.tokens[-1]] for run in self.runs])
        states, _ = self._model.run(self._matrices, last, self._cache.lengths[:, None], self._cache)
        self._cache.lengths += 1
        logits = self._model.find_logits(self._matrices, states)
        for run, *found in zip(self.runs, logits, log_softmax(logits)):
            extend(run, *found)

    def begin(self, new: Sequence[Begin]) -> None:
        """Compute and score the prompts of new runs, each prompt once, and draw
        their first tokens.
        """
        works = list(dict.fromkeys(work for work, _ in new))
        lengths = np.array([len(work.job.tokens) for work in works])
        tokens, positions = pad([work.job.tokens for work in works])
        cache = Cache(self._model.shape, *tokens.shape)
        states, _ = self._model.run(self._matrices, tokens, positions, cache)
        states, cache.lengths = states.reshape(*tokens.shape, -1), lengths
        for work, length, mine in zip(works, lengths, states):
            if work.scores is None:
                work.scores = self._score(work.job, mine[: length - 1])
        logits = self._model.find_logits(self._matrices, states[np.arange(len(works)), lengths - 1])
        rows = [works.index(work) for work, run in new if not run.is_over]
        cache.select(rows)
        self._cache.join(cache)
        begun = [run for _, run in new if not run.is_over]
        self.runs += begun
        logprobs = log_softmax(logits)
        for run, row in zip(begun, rows):
            extend(run, logits[row], logprobs[row])

    def _score(self, job: SampleJob, states: Float32) -> SampleResult:
        """Score the tokens of a prompt but the first, given the states before them."""
        scorer, table = (
            PromptScorer(job),
            log_softmax(self._model.find_logits(self._matrices, states)),
        )
        scorer.add(
            table[np.arange(len(table)), job.tokens[1:]], table if needs_table(job) else None
        )
        return scorer.result()

    def drop_ended(self) -> None:
        """Drop the rows of runs that are over."""
        if any(run.is_over for run in self.runs):
            self._cache.select([row for row, run in enumerate(self.runs) if not run.is_over])
            self.runs = [run for run in self.runs if not run.is_over]


class NumpyBatch:
    """A SampleBatch of a numpy engine."""

    def __init__(
        self,
        model: Llama,
        adapt: Callable[[ArrayWeights | None], Matrices],
        start: Callable[[SampleJob], Work],
        limit: int,
    ) -> None:
        self._model, self._adapt, self._start, self._limit = model, adapt, start, limit
        self._works: dict[object, Work] = {}
        self._waiting: list[Begin] = []
        self._rows: dict[ArrayWeights | None, Rows] = {}

    @property
    def tokens(self) -> int:
        return sum(
            run.length for work in self._works.values() for run in work.runs if not run.is_over
        )

    def add(self, ticket: object, job: SampleJob) -> None:
        work = self._works[ticket] = self._start(job)
        self._waiting += [(work, run) for run in work.runs]

    def drop(self, ticket: object) -> None:
        if (work := self._works.pop(ticket, None)) is not None:
            work.scores = work.scores or SampleResult(sequences=[])
            for run in work.runs:
                run.end()

    @compute_in_one_thread()
    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is an error that says more
    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        for weights, rows in list(self._rows.items()):
            rows.drop_ended()
            if not rows.runs:
                del self._rows[weights]
            else:
                _guard(rows.runs, rows.advance)
        self._begin()
        found = [(ticket, work.outcome()) for ticket, work in self._works.items()]
        ended = [(ticket, outcome) for ticket, outcome in found if outcome is not None]
        for ticket, _ in ended:
            self.drop(ticket)
        return ended

    def _begin(self) -> None:
        """Compute the prompts of the runs for which there is room, of each adapter those of like
        length together.
        """
        by_weights: dict[ArrayWeights | None, list[Begin]] = {}
        for work, run in self._admit():
            by_weights.setdefault(find_weights(work.job), []).append((work, run))
        for weights, admitted in by_weights.items():
            for batch in split_batches(
                [len(work.job.tokens) for work, _ in admitted], PROMPT_CELLS
            ):
                new = [admitted[index] for index in batch]
                _guard([run for _, run in new], partial(self._begin_rows, weights, new))

    def _begin_rows(self, weights: ArrayWeights | None, new: Sequence[Begin]) -> None:
        if weights not in self._rows:
            self._rows[weights] = Rows(self._model, self._adapt(weights))
        self._rows[weights].begin(new)

    def _admit(self) -> list[Begin]:
        """Return the next runs, in the order of their arrival, as long as there is room; one at
        least where none runs.
        """
        held = sum(
            run.length for rows in self._rows.values() for run in rows.runs if not run.is_over
        )
        admitted: list[Begin] = []
        while self._waiting:
            work, run = self._waiting[0]
            if held and held + run.length > self._limit:
                break
            del self._waiting[0]
            if not run.is_over or (work.scores is None and run.index == 0):
                admitted.append((work, run))
                held += run.length
        return admitted


def _guard(runs: Sequence[DecodingRun], work: Callable[[], None]) -> None:
    """Do the work of some runs, whose error a failure is: the others go on."""
    try:
        work()
    except Exception as error:  # noqa: BLE001
        for run in runs:
            run.error = run.error or error
