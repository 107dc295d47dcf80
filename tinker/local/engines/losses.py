"""The token losses: the value of each term, and its derivative by the log-probability of its
target; and their metrics.

Each formula is written once, for numpy arrays and torch tensors alike: ``xp`` is ``numpy`` or
``torch``. Every loss is a sum over tokens (and, for ``[N, K]`` targets, over cells) of a term times
its weight. Terms see only the cells with a weight, so whatever stands in the other inputs of a cell
of weight zero has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import attrs
import numpy as np

from tinker.local.engines.inputs import LOSS_FORMS, SEQUENCE_LOG_RATIO, LossForm, clip_bounds

Array: TypeAlias = Any  # of ``xp``
CellInputs: TypeAlias = Mapping[str, Array]
LossOptions: TypeAlias = Mapping[str, float]
TokenLoss: TypeAlias = Callable[[Any, Array, CellInputs, LossOptions], tuple[Array, Array]]
SAMPLER_GAP = "sampler_logprob_gap"


def ratio(xp: Any, logprobs: Array, inputs: CellInputs) -> Array:
    """Compute how much likelier each token, or its whole sequence, is now than when it was sampled;
    infinite on overflow.
    """
    with np.errstate(over="ignore"):
        return xp.exp(inputs.get(SEQUENCE_LOG_RATIO, logprobs - inputs["logprobs"]))


def _clip(ratios: Array, options: LossOptions) -> Array:
    return ratios.clip(options["clip_low_threshold"], options["clip_high_threshold"])


def _cross_entropy(
    xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions
) -> tuple[Array, Array]:
    return -logprobs, xp.full_like(logprobs, -1.0)


def _importance_sampling(
    xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions
) -> tuple[Array, Array]:
    gain = ratio(xp, logprobs, inputs) * inputs["advantages"]
    return -gain, -gain


def _ppo(xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions) -> tuple[Array, Array]:
    ratios, advantages = ratio(xp, logprobs, inputs), inputs["advantages"]
    free, held = ratios * advantages, _clip(ratios, options) * advantages
    return -xp.minimum(free, held), xp.where(free <= held, -free, 0.0)


def _cispo(
    xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions
) -> tuple[Array, Array]:
    factor = _clip(ratio(xp, logprobs, inputs), options) * inputs["advantages"]
    return -factor * logprobs, -factor


def _dro(xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions) -> tuple[Array, Array]:
    drift, beta = logprobs - inputs["logprobs"], options["beta"]
    return -(logprobs * inputs["advantages"] - 0.5 * beta * drift**2), -(
        inputs["advantages"] - beta * drift
    )


def _reinforce(
    xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions
) -> tuple[Array, Array]:
    factor = (
        ratio(xp, logprobs, inputs).clip(max=options["clip_high_threshold"]) * inputs["advantages"]
    )
    drift, strength = logprobs - inputs["logprobs"], options["kl_coeff"]
    return -factor * logprobs + 0.5 * strength * drift**2, -factor + strength * drift


LOSSES: Mapping[str, TokenLoss] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "gspo": _ppo,
    "dro": _dro,
    "stable_reinforce": _reinforce,
}
assert LOSSES.keys() == LOSS_FORMS.keys()


@attrs.define
class LossMetrics:
    """The metrics of one call, over all cells that teach something."""

    xp: Any
    form: LossForm
    options: LossOptions
    loss: float = 0.0
    tokens: int = 0
    weights: float = 0.0
    clipped: int = 0
    ratio: tuple[float, float] | None = None
    gap: tuple[float, float] = (0.0, 0.0)

    def add(self, terms: Array, logprobs: Array, weights: Array, cells: CellInputs) -> None:
        """Count cells that have a weight; their terms have double precision."""
        self.loss += float(terms.sum())
        counted = slice(None) if self.form.factor is None else cells[self.form.factor] != 0
        self.tokens += len(terms[counted])
        self.weights += float(weights[counted].sum())
        if "logprobs" in cells:
            gaps = self.xp.abs(logprobs - cells["logprobs"])
            self._compare(ratio(self.xp, logprobs, cells)[counted], gaps[counted])

    def _compare(self, ratios: Array, gaps: Array) -> None:
        """Update the range of the ratios, the count of clipped ones, and the sum and the largest of
        the gaps.
        """
        if not len(ratios):
            return
        low, high = float(ratios.min()), float(ratios.max())
        self.ratio = (
            (min(low, self.ratio[0]), max(high, self.ratio[1])) if self.ratio else (low, high)
        )
        self.gap = self.gap[0] + float(gaps.sum()), max(self.gap[1], float(gaps.max()))
        if (bounds := clip_bounds(self.options)) is not None:
            self.clipped += int(((ratios < bounds[0]) | (ratios > bounds[1])).sum())

    def metrics(self) -> dict[str, float]:
        """Return the metrics. ``clipped`` counts the cells whose ratio lay outside the thresholds.

        ``sampler_logprob_gap`` is how far each log-probability is from the one that the sampler
        gave, in nats.
        """
        metrics = {
            "loss:sum": self.loss,
            "tokens:sum": float(self.tokens),
            "weights:sum": self.weights,
        }
        if self.ratio:
            metrics |= {"ratio:min": self.ratio[0], "ratio:max": self.ratio[1]}
            metrics |= {
                f"{SAMPLER_GAP}:mean": self.gap[0] / self.tokens,
                f"{SAMPLER_GAP}:max": self.gap[1],
            }
        has_bounds = clip_bounds(self.options) is not None
        return metrics | {self.form.clip_metric: float(self.clipped)} if has_bounds else metrics
