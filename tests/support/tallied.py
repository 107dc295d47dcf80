"""Batches of the torch engine that count their passes. Needs torch and transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from transformers.cache_utils import DynamicCache

from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.sampling import TorchBatch


@attrs.define
class PassTally:
    """How often the model ran, over how many tokens, and how many cells with padding."""

    passes: int = 0
    real: int = 0
    padded: int = 0

    def add(self, lengths: Sequence[int]) -> None:
        """Count a pass over rows of these lengths."""
        self.passes, self.real = self.passes + 1, self.real + sum(lengths)
        self.padded += len(lengths) * max(lengths)


class TalliedBatch(TorchBatch):
    """A batch that counts its passes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tally = PassTally()

    def _score(self, batch: Any, states: Any, real: list[int]) -> None:
        super()._score(batch, states, real)
        self.tally.add(real)

    def _advance(self, group: Any) -> None:
        super()._advance(group)
        self.tally.add([1] * len(group.runs))


def open_batch(engine: TorchEngine, limit: int) -> TalliedBatch:
    """Return what the engine makes, with a count of its passes."""
    return TalliedBatch(engine._parts, DynamicCache(config=engine._parts.config), limit)
