"""Losses in micro-batches, and once more in smaller ones when the memory does not suffice."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

from typing import Any

import attrs

from tinker.local.engines import EngineError, Recompute
from tinker.local.engines.torch.batches import split_batches
from tinker.local.engines.torch.head import WHOLE_LOGITS, SplitModel, chunk_cells
from tinker.local.engines.torch.passes import LossPlan, LossRun
from tinker.local.engines.torch.recomputing import is_out_of_memory, is_useful, recompute_layers, release_memory

MAX_MICRO_BATCH_TOKENS = 2**13
SMALLER = 8  # times, when the memory did not suffice


@attrs.frozen
class PassLimits:
    """How much goes through the model at once: tokens of a micro-batch, and logits of one pass through the head."""

    tokens: int
    logits: int
    recompute: Recompute

    def shrink(self, largest: int) -> PassLimits:
        """Return limits that take much less memory than a micro-batch of ``largest`` cells."""
        recompute: Recompute = "never" if self.recompute == "never" else "always"
        return PassLimits(max(1, largest // SMALLER), max(1, self.logits // SMALLER), recompute)


class Trainer:
    """Runs plans on one model. What ran out of memory is tried once more, and what is as large begins small from then on."""

    def __init__(self, model: Any, split: SplitModel, recompute: Recompute) -> None:
        self._model, self._split = model, split
        self._recompute: Recompute = recompute
        self._too_much: int | None = None  # cells of a micro-batch

    def run(self, plan: LossPlan) -> LossRun:
        """Compute a plan. Raises EngineError when even small micro-batches take too much memory."""
        limits = self._limits(plan)
        largest = max(self._count_cells(plan, batch) for batch in self._batches(plan, limits))
        if self._too_much is None or largest < self._too_much:
            if (done := self._try(plan, limits)) is not None:
                return done
            self._too_much = largest
        if (done := self._try(plan, limits.shrink(largest))) is not None:
            return done
        longest = max(len(datum.tokens) for datum in plan.data)
        raise EngineError(
            f"out of memory on {self._model.device}, even in small parts: the longest datum has "
            f"{longest} tokens; send shorter ones"
        )

    def _limits(self, plan: LossPlan) -> PassLimits:
        tokens = MAX_MICRO_BATCH_TOKENS
        if not self._split.is_split:
            tokens = min(tokens, WHOLE_LOGITS // plan.vocabulary)
        return PassLimits(tokens, chunk_cells(self._model.device), self._recompute)

    def _batches(self, plan: LossPlan, limits: PassLimits) -> list[list[int]]:
        """Return indices of data of like length, so many that the padded batch stays within the limits (at least one)."""
        return list(split_batches([len(datum.tokens) for datum in plan.data], limits.tokens))

    def _count_cells(self, plan: LossPlan, batch: list[int]) -> int:
        return len(batch) * max(len(plan.data[index].tokens) for index in batch)

    def _try(self, plan: LossPlan, limits: PassLimits) -> LossRun | None:
        """Compute a plan; None when the memory does not suffice. Nothing of a failed attempt is left then."""
        try:
            return self._compute(plan, limits)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        release_memory(self._model.device)
        return None

    def _compute(self, plan: LossPlan, limits: PassLimits) -> LossRun:
        run = LossRun(self._split, plan, limits.logits)
        for batch in self._batches(plan, limits):
            with recompute_layers(self._model, self._is_recomputed(plan, batch, limits.recompute)):
                run.add(batch, self._model.device)
        return run

    def _is_recomputed(self, plan: LossPlan, batch: list[int], recompute: Recompute) -> bool:
        if not plan.parameters or recompute == "never":
            return False
        return recompute == "always" or is_useful(self._model, self._count_cells(plan, batch))
