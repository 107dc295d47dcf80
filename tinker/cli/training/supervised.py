"""Supervised steps: the cross-entropy of examples, and of those of an evaluation file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import tinker
from tinker.cli.examples import ExampleRow
from tinker.cli.training.plan import Plan

#: A batch and the future of its outputs.
SentBatch: TypeAlias = "tuple[Sequence[ExampleRow], tinker.APIFuture[tinker.ForwardBackwardOutput]]"


class StepResult(NamedTuple):
    """The result of a step: its metrics by name, with ``loss`` or ``reward``, and its number of tokens."""

    metrics: dict[str, float]
    tokens: int


class SentStep(NamedTuple):
    """A step whose requests are sent."""

    batches: Sequence[SentBatch]
    optimizer: tinker.APIFuture[Any]

    def wait(self) -> StepResult:
        """Wait for the step. The metrics are the loss per token and those of the optimizer."""
        loss = mean_loss(self.batches)
        reported: dict[str, float] = self.optimizer.result().metrics or {}
        tokens = sum(len(row.tokens) - 1 for rows, _ in self.batches for row in rows)
        return StepResult({"loss": loss, **reported}, tokens)

    @property
    def futures(self) -> Sequence[tinker.APIFuture[Any]]:
        """Return all futures of the step, that of the optimizer last."""
        return [*(future for _, future in self.batches), self.optimizer]


class Supervised:
    """Supervised steps over a file of examples. They are sent before earlier results arrive, so that the server never idles."""

    metric: str = "loss"
    steps_ahead: int = 2

    def __init__(self, plan: Plan, rows: Sequence[ExampleRow]) -> None:
        self._plan = plan
        self._batches = plan.split(rows)
        self.examples: int = len(rows)
        self.steps: int = len(self._batches)

    def send(self, training: tinker.TrainingClient, step: int) -> SentStep:
        """Send the requests of a step, counted from 0."""
        sent = [
            (rows, training.forward_backward([row.datum() for row in rows], "cross_entropy")) for rows in self._batches[step]
        ]
        return SentStep(sent, training.optim_step(self._plan.adam_at(step, self.steps)))


class HeldOutLoss:
    """The loss on examples that are not trained on."""

    def __init__(self, rows: Sequence[ExampleRow], batch_size: int) -> None:
        self._batches = [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]

    def send(self, training: tinker.TrainingClient) -> Sequence[SentBatch]:
        """Send the requests; they use the weights after all steps sent so far."""
        return [(rows, training.forward([row.datum() for row in rows], "cross_entropy")) for rows in self._batches]


def mean_loss(batches: Sequence[SentBatch]) -> float:
    """Return the loss per token, computed from log-probabilities, as servers do not agree on the names of their metrics."""
    total = 0.0
    for rows, future in batches:
        for row, output in zip(rows, future.result().loss_fn_outputs):
            logprobs = output["logprobs"].tolist()
            total -= sum(weight * value for weight, value in zip(row.weights[1:], logprobs) if weight)
    return total / sum(row.weight for rows, _ in batches for row in rows)
