"""The token losses in numpy: the value of each term and its exact derivative with respect to the target's logprob."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.inputs import SEQUENCE_LOG_RATIO, LossForm, clip_bounds

Float64: TypeAlias = NDArray[np.float64]
ToyInputs: TypeAlias = Mapping[str, Float64]
ToyOptions: TypeAlias = Mapping[str, float]
ToyLoss: TypeAlias = Callable[[Float64, ToyInputs, ToyOptions], tuple[Float64, Float64]]


def ratio(logprobs: Float64, inputs: ToyInputs) -> Float64:
    """Compute how much likelier each token, or its whole sequence, is now than when it was sampled; infinite on overflow."""
    with np.errstate(over="ignore"):
        return np.exp(inputs.get(SEQUENCE_LOG_RATIO, logprobs - inputs["logprobs"]))


def _clip(ratios: Float64, options: ToyOptions) -> Float64:
    return np.clip(ratios, options["clip_low_threshold"], options["clip_high_threshold"])


def _cross_entropy(logprobs: Float64, inputs: ToyInputs, options: ToyOptions) -> tuple[Float64, Float64]:
    return -logprobs, np.full_like(logprobs, -1.0)


def _importance_sampling(logprobs: Float64, inputs: ToyInputs, options: ToyOptions) -> tuple[Float64, Float64]:
    gain = ratio(logprobs, inputs) * inputs["advantages"]
    return -gain, -gain


def _ppo(logprobs: Float64, inputs: ToyInputs, options: ToyOptions) -> tuple[Float64, Float64]:
    ratios, advantages = ratio(logprobs, inputs), inputs["advantages"]
    free, held = ratios * advantages, _clip(ratios, options) * advantages
    return -np.minimum(free, held), np.where(free <= held, -free, 0.0)


def _cispo(logprobs: Float64, inputs: ToyInputs, options: ToyOptions) -> tuple[Float64, Float64]:
    factor = _clip(ratio(logprobs, inputs), options) * inputs["advantages"]
    return -factor * logprobs, -factor


def _dro(logprobs: Float64, inputs: ToyInputs, options: ToyOptions) -> tuple[Float64, Float64]:
    drift, beta = logprobs - inputs["logprobs"], options["beta"]
    return -(logprobs * inputs["advantages"] - 0.5 * beta * drift**2), -(inputs["advantages"] - beta * drift)


def _reinforce(logprobs: Float64, inputs: ToyInputs, options: ToyOptions) -> tuple[Float64, Float64]:
    factor = np.minimum(ratio(logprobs, inputs), options["clip_high_threshold"]) * inputs["advantages"]
    drift, strength = logprobs - inputs["logprobs"], options["kl_coeff"]
    return -factor * logprobs + 0.5 * strength * drift**2, -factor + strength * drift


TOY_LOSSES: Mapping[str, ToyLoss] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "gspo": _ppo,
    "dro": _dro,
    "stable_reinforce": _reinforce,
}


def loss_metrics(terms: Float64, logprobs: Float64, inputs: ToyInputs, form: LossForm, options: ToyOptions) -> dict[str, float]:
    """Sum over the cells that have an effect; for losses with sampling logprobs add the range of the ratios."""
    counted = np.ones(len(terms), bool) if form.factor is None else inputs[form.factor] != 0
    found = {"loss:sum": float(terms.sum()), "tokens:sum": float(counted.sum())}
    if "logprobs" in inputs:
        ratios = ratio(logprobs, inputs)[counted]
        if len(ratios):
            found |= {"ratio:min": float(ratios.min()), "ratio:max": float(ratios.max())}
        if (bounds := clip_bounds(options)) is not None:
            found[form.clip_metric] = float(((ratios < bounds[0]) | (ratios > bounds[1])).sum())
    return found
