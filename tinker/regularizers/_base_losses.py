"""The losses that servers know by name, by their documented formulas, with their gradients; in
numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker._training import Logprobs
from tinker._validate import LOSS_INPUTS
from tinker.custom_loss import Gradients, LossWithGradients
from tinker.regularizers._cells import check_input
from tinker.types.datum import Datum
from tinker_records import suggest

Doubles: TypeAlias = NDArray[np.float64]
LossInputs: TypeAlias = Mapping[str, Doubles]
Options: TypeAlias = Mapping[str, float]
Formula: TypeAlias = Callable[[Doubles, LossInputs, Options], tuple[Doubles, Doubles]]
"""From the log-probabilities: the loss of each token, and its derivative."""

_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_OPTIONS: Mapping[str, Options] = {"ppo": _CLIP, "cispo": _CLIP, "dro": {"beta": 0.05}}
_MASKS = frozenset({"weights", "mask"})


def _ratio(logprobs: Doubles, inputs: LossInputs) -> Doubles:
    with np.errstate(over="ignore"):
        return np.exp(logprobs - inputs["logprobs"])


def _clip(ratios: Doubles, options: Options) -> Doubles:
    return np.clip(ratios, options["clip_low_threshold"], options["clip_high_threshold"])


def _cross_entropy(
    logprobs: Doubles, inputs: LossInputs, options: Options
) -> tuple[Doubles, Doubles]:
    return -logprobs, np.full_like(logprobs, -1.0)


def _importance_sampling(
    logprobs: Doubles, inputs: LossInputs, options: Options
) -> tuple[Doubles, Doubles]:
    loss = -_ratio(logprobs, inputs) * inputs["advantages"]
    return loss, loss


def _ppo(logprobs: Doubles, inputs: LossInputs, options: Options) -> tuple[Doubles, Doubles]:
    ratios, advantages = _ratio(logprobs, inputs), inputs["advantages"]
    free, held = ratios * advantages, _clip(ratios, options) * advantages
    return -np.minimum(free, held), np.where(free <= held, -free, 0.0)


def _cispo(logprobs: Doubles, inputs: LossInputs, options: Options) -> tuple[Doubles, Doubles]:
    slope = -_clip(_ratio(logprobs, inputs), options) * inputs["advantages"]
    return slope * logprobs, slope


def _dro(logprobs: Doubles, inputs: LossInputs, options: Options) -> tuple[Doubles, Doubles]:
    drift, advantages = logprobs - inputs["logprobs"], inputs["advantages"]
    return options["beta"] / 2 * drift**2 - logprobs * advantages, options[
        "beta"
    ] * drift - advantages


FORMULAS: Mapping[str, Formula] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "dro": _dro,
}


@attrs.frozen
class NamedLoss:
    """One of these losses with its options: a sum over the tokens of all datums, each times its
    weight.
    """

    name: str
    options: Options

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for a datum that lacks an input, or has one that the formula does not
        have.
        """
        required, known = LOSS_INPUTS[self.name]
        for index, datum in enumerate(data):
            given = datum.loss_fn_inputs.keys()
            if unsupported := sorted((known - required - _MASKS) & given):
                raise ValueError(
                    f"data[{index}].loss_fn_inputs has {unsupported[0]!r}, "
                    f"which {self.name} does not take"
                )
            for name in sorted(required | (known & _MASKS & given)):
                check_input(index, datum, name)

    def evaluate(self, data: list[Datum], logprobs: Logprobs) -> tuple[float, Gradients]:
        """Return the loss and its gradient."""
        total, gradients = 0.0, list[Doubles]()
        for datum, part in zip(data, logprobs, strict=True):
            weights = self._weights(datum, part.shape)
            counted = weights != 0  # whatever else stands in the other tokens has no effect
            inputs = {
                name: self._read(datum, name)[counted]
                for name in LOSS_INPUTS[self.name][0] - {"target_tokens"}
            }
            losses, slopes = FORMULAS[self.name](
                part[counted].astype(np.float64), inputs, self.options
            )
            total += float((weights[counted] * losses).sum())
            gradient = np.zeros(part.shape)
            gradient[counted] = weights[counted] * slopes
            gradients.append(gradient)
        return total, gradients

    def _weights(self, datum: Datum, shape: tuple[int, ...]) -> Doubles:
        weights = np.ones(shape)
        for name in sorted(LOSS_INPUTS[self.name][1] & _MASKS & datum.loss_fn_inputs.keys()):
            weights = weights * self._read(datum, name)
        return weights

    def _read(self, datum: Datum, name: str) -> Doubles:
        return datum.loss_fn_inputs[name].to_numpy().astype(np.float64)


def make_named_loss(name: str, config: Mapping[str, float] | None) -> LossWithGradients:
    """Return the loss of that name. ValueError for an unknown name, option or value."""
    if name not in FORMULAS:
        raise ValueError(
            f"base must be a loss function or one of {', '.join(FORMULAS)}; got {name!r}"
        )
    options = dict(_OPTIONS.get(name, {}))
    for key, value in (config or {}).items():
        if key not in options:
            raise ValueError(
                f"unknown loss_fn_config key {key!r}; {suggest(f'{name} takes', key, options)}"
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))  # pyright: ignore[reportUnnecessaryIsInstance]
            or not math.isfinite(value)
        ):
            raise ValueError(f"loss_fn_config[{key!r}] must be a finite number, got {value!r}")
        options[key] = float(value)
    if (
        options.keys() == _CLIP.keys()
        and options["clip_low_threshold"] > options["clip_high_threshold"]
    ):
        raise ValueError("loss_fn_config: clip_low_threshold is above clip_high_threshold")
    loss = NamedLoss(name, options)
    return LossWithGradients(loss.evaluate, loss.check)
