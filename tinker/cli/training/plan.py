"""The plan of a run: its options, and the batches and the learning rates that follow from them and from nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from tinker.types import AdamParams

Row = TypeVar("Row")
Schedule: TypeAlias = Literal["linear", "cosine", "constant"]


class Plan(NamedTuple):
    """The options that decide what a run computes. A resumed run has the same ones."""

    model: str | None = None
    start: str | None = None
    rank: int = 32
    learning_rate: float = 1e-4
    schedule: Schedule = "linear"
    warmup: int = 0
    batch_size: int = 16
    accumulate: int = 1
    epochs: int = 1
    max_steps: int | None = None
    max_length: int | None = None
    tokenizer_id: str | None = None
    seed: int = 0
    name: str = "final"
    grpo: str | None = None
    group_size: int = 8
    max_tokens: int = 128
    temperature: float = 1.0
    stop: tuple[str, ...] = ()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Plan:
        """Return the plan among the values of all options."""
        plan = cls(**{name: values[name] for name in cls._fields if name in values})
        return plan._replace(stop=tuple(plan.stop))

    def learning_rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, of so many.

        >>> plan = Plan(learning_rate=1.0, warmup=2)
        >>> [plan.learning_rate_at(step, 6) for step in range(6)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
        """
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * (1 - done if self.schedule == "linear" else 1.0)

    def adam_at(self, step: int, steps: int) -> AdamParams:
        """Return the parameters of the optimizer for a step."""
        from tinker.types import AdamParams

        return AdamParams(learning_rate=self.learning_rate_at(step, steps))

    def split(self, rows: Sequence[Row]) -> list[list[list[Row]]]:
        """Return the batches of every step. Each epoch has its own order, and its last step may be smaller."""
        steps: list[list[list[Row]]] = []
        for order in self._orders(len(rows)):
            batches = [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]
            for at in range(0, len(batches), self.accumulate):
                steps.append([[rows[index] for index in batch] for batch in batches[at : at + self.accumulate]])
        return steps[: self.max_steps]

    def _orders(self, count: int) -> Iterator[list[int]]:
        shuffle = random.Random(self.seed)  # noqa: S311  (an order, not a secret)
        return (shuffle.sample(range(count), count) for _ in range(self.epochs))


def option_of(name: str) -> str:
    """Return the option that sets a field of the plan.

    >>> option_of("learning_rate"), option_of("start")
    ('--learning-rate', '--from')
    """
    odd = {"start": "--from", "tokenizer_id": "--tokenizer"}
    return odd.get(name, f"--{name.replace('_', '-')}")
