"""The token losses in numpy: the value of each term and its exact derivative with respect to the target's logprob."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinker.local.engines import CLIP_DEFAULTS, LossForm

Float64: TypeAlias = NDArray[np.float64]
ToyInputs: TypeAlias = Mapping[str, Float64]
ToyOptions: TypeAlias = Mapping[str, float]
ToyLoss: TypeAlias = Callable[[Float64, ToyInputs, ToyOptions], tuple[Float64, Float64]]


def ratio(logprobs: Float64, inputs: ToyInputs) -> Float64:
    """Compute how much likelier each token is now than when it was sampled; infinite where that overflows."""
    with np.errstate(over="ignore"):
        return np.exp(logprobs - inputs["logprobs"])


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


TOY_LOSSES: Mapping[str, ToyLoss] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
}


def loss_metrics(terms: Float64, logprobs: Float64, inputs: ToyInputs, form: LossForm, options: ToyOptions) -> dict[str, float]:
    """Sum over the cells that have an effect; for losses with sampling logprobs add the range of the ratios."""
    counted = np.ones(len(terms), bool) if form.factor is None else inputs[form.factor] != 0
    found = {"loss:sum": float(terms.sum()), "tokens:sum": float(counted.sum())}
    if "logprobs" in inputs:
        ratios = ratio(logprobs, inputs)[counted]
        if len(ratios):
            found |= {"ratio:min": float(ratios.min()), "ratio:max": float(ratios.max())}
        if options.keys() == CLIP_DEFAULTS.keys():
            found["clipped:sum"] = float((ratios != _clip(ratios, options)).sum())
    return found
