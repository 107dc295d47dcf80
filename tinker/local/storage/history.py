"""What the server has seen of a training run: the metrics of its losses and optimizer steps, one point for each step.

Nothing else is known here: a reward is there when a loss reports it as a metric.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import attrs

MAX_POINTS = 2000  # the newest; a run of more steps loses the oldest ones
LOSS, TOKENS, PER_TOKEN = "loss:sum", "tokens:sum", "loss per token"
_JOIN: Mapping[str, Callable[[float, float], float]] = {"sum": lambda a, b: a + b, "min": min, "max": max}


@attrs.frozen
class HistoryPoint:
    """One optimizer step: its number, from 1 on, the time of day, and the metrics."""

    step: int
    at: float
    metrics: Mapping[str, float]


class RunHistory:
    """The steps of one run. Guarded by the lock of the state."""

    def __init__(self) -> None:
        self.points: deque[HistoryPoint] = deque(maxlen=MAX_POINTS)
        self.step_count: int = 0
        self._sums: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self.on_point: Callable[[HistoryPoint], None] = _ignore_point

    def restore(self, points: Iterable[HistoryPoint]) -> None:
        """Begin with the steps that an earlier process of this server has seen."""
        self.points.extend(points)
        self.step_count = self.points[-1].step if self.points else 0

    def add_loss(self, metrics: Mapping[str, float]) -> None:
        """Add what a forward_backward reported. Several before one step count together, by the reduction in their names."""
        for name, value in metrics.items():
            before = self._sums.get(name)
            join = _JOIN.get(name.rpartition(":")[2], _JOIN["sum"])
            self._sums[name] = value if before is None else join(before, value)
            self._calls[name] = self._calls.get(name, 0) + 1

    def add_step(self, metrics: Mapping[str, float], at: float) -> None:
        """Add an optimizer step, which ends what was added since the one before."""
        joined = {name: self._settle(name, value) for name, value in self._sums.items()}
        if LOSS in joined and joined.get(TOKENS):
            joined = {PER_TOKEN: joined[LOSS] / joined[TOKENS], **joined}
        self.step_count += 1
        self.points.append(HistoryPoint(self.step_count, at, {**joined, **metrics}))
        self._sums, self._calls = {}, {}
        self.on_point(self.points[-1])

    def _settle(self, name: str, value: float) -> float:
        """Return the value over all calls: metrics that are neither a sum nor an extreme are averaged."""
        return value if name.rpartition(":")[2] in _JOIN else value / self._calls[name]


def _ignore_point(point: HistoryPoint) -> None:
    return None
