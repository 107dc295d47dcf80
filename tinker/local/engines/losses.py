"""The token losses in torch: which inputs and options each one takes, the checks of one datum, and the formulas.

Every loss is a sum over tokens (and, for ``[N, K]`` targets, over cells) of a term times its weight. Cells of weight
zero are left out of the computation altogether, so whatever stands in their other inputs has no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from tinker.local.engines.protocol import EngineError, Example, Float32

Terms = Callable[[torch.Tensor, Mapping[str, torch.Tensor], Mapping[str, float]], torch.Tensor]

CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


@attrs.frozen(kw_only=True)
class Loss:
    """``terms(logprobs, inputs, config)`` is each cell's loss without its weight; ``config`` holds the defaults."""

    inputs: tuple[str, ...] = ("target_tokens", "logprobs", "advantages")
    config: Mapping[str, float] = attrs.Factory(dict[str, float])
    terms: Terms


@attrs.frozen(kw_only=True, eq=False)
class Prepared:
    """A checked datum: all arrays but ``tokens`` are ``[N, K]``, with K = 1 where the targets came as ``[N]``."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: Float32
    inputs: Mapping[str, Float32]
    shape: tuple[int, ...]


def ratio(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """How much likelier the token is now than when it was sampled."""
    return torch.exp(logprobs - inputs["logprobs"])


def clipped(value: torch.Tensor, config: Mapping[str, float]) -> torch.Tensor:
    return value.clamp(config["clip_low_threshold"], config["clip_high_threshold"])


def _cross_entropy(
    logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], config: Mapping[str, float]
) -> torch.Tensor:
    return -logprobs


def _importance_sampling(
    logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], config: Mapping[str, float]
) -> torch.Tensor:
    return -ratio(logprobs, inputs) * inputs["advantages"]


def _ppo(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], config: Mapping[str, float]) -> torch.Tensor:
    free = ratio(logprobs, inputs)
    return -torch.minimum(free * inputs["advantages"], clipped(free, config) * inputs["advantages"])


def _cispo(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], config: Mapping[str, float]) -> torch.Tensor:
    return -clipped(ratio(logprobs, inputs), config).detach() * logprobs * inputs["advantages"]


def _dro(logprobs: torch.Tensor, inputs: Mapping[str, torch.Tensor], config: Mapping[str, float]) -> torch.Tensor:
    drift = logprobs - inputs["logprobs"]
    return -(logprobs * inputs["advantages"] - 0.5 * config["beta"] * drift.square())


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(inputs=("target_tokens",), terms=_cross_entropy),
    "importance_sampling": Loss(terms=_importance_sampling),
    "ppo": Loss(config=CLIP, terms=_ppo),
    "cispo": Loss(config=CLIP, terms=_cispo),
    "dro": Loss(config={"beta": 0.05}, terms=_dro),
}


def select_loss(name: str, config: Mapping[str, float | str]) -> tuple[Loss, dict[str, float]]:
    """The loss of that name and its options, defaults filled in. Raises EngineError for an unknown name or option."""
    loss = LOSSES.get(name)
    if loss is None:
        raise EngineError(f"unknown loss_fn {name!r}; this server has {', '.join(LOSSES)}")
    for key, value in config.items():
        if key not in loss.config:
            known = ", ".join(loss.config) or "no options"
            raise EngineError(f"unknown loss_fn_config key {key!r}; {name} takes {known}")
        if isinstance(value, str) or not math.isfinite(value):
            raise EngineError(f"loss_fn_config {key!r} is {value!r}; a finite number is needed")
    options = dict(loss.config) | {key: float(value) for key, value in config.items()}
    if loss.config is CLIP and options["clip_low_threshold"] > options["clip_high_threshold"]:
        raise EngineError(f"loss_fn_config of {name}: clip_low_threshold exceeds clip_high_threshold")
    return loss, options


def prepare(index: int, example: Example, name: str, loss: Loss, *, vocabulary: int, longest: int) -> Prepared:
    """Check datum ``index`` and bring it into one form. Raises EngineError naming the datum and the field."""
    length = len(example.tokens)
    if not 0 < length <= longest:
        raise EngineError(f"datum {index}: model_input has {length} tokens; 1 to {longest} are possible")
    check_tokens(f"datum {index}: model_input", example.tokens, vocabulary)
    given = example.loss_inputs
    masks = {"weights"} if name == "cross_entropy" else {"weights", "mask"}
    _check_names(index, name, set(given), set(loss.inputs), masks)
    shape = np.shape(given["target_tokens"])
    several = name == "cross_entropy" and len(shape) == 2 and shape[0] == length and shape[1] > 0
    if shape != (length,) and not several:
        form = f"[{length}] or [{length}, K]" if name == "cross_entropy" else f"[{length}]"
        raise EngineError(f"datum {index}: target_tokens has shape {list(shape)}; {form} is needed")
    cells = {key: _cells(index, key, value, shape) for key, value in given.items() if key != "target_tokens"}
    weights = np.ones(shape, np.float32).reshape(length, -1)
    for key in masks & cells.keys():
        weights = weights * cells[key]
    targets = np.asarray(given["target_tokens"]).astype(np.int64).reshape(length, -1)
    check_tokens(f"datum {index}: target_tokens", targets[weights != 0], vocabulary)
    return Prepared(
        tokens=example.tokens.astype(np.int64),
        targets=targets,
        weights=weights,
        inputs={key: cells[key] for key in loss.inputs if key != "target_tokens"},
        shape=shape,
    )


def check_tokens(what: str, tokens: NDArray[np.integer], vocabulary: int) -> None:
    """Raise EngineError when a token id is not in the vocabulary."""
    wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if wrong.size:
        raise EngineError(f"{what} holds token id {int(wrong.flat[0])}; ids run from 0 to {vocabulary - 1}")


def _check_names(index: int, name: str, given: set[str], required: set[str], optional: set[str]) -> None:
    if missing := sorted(required - given):
        raise EngineError(f"datum {index}: loss_fn_inputs lacks {', '.join(missing)}, which {name} needs")
    if unknown := sorted(given - required - optional):
        known = ", ".join([*sorted(required), *sorted(optional)])
        raise EngineError(f"datum {index}: loss_fn_inputs holds {', '.join(unknown)}; {name} takes {known}")


def _cells(index: int, key: str, value: NDArray[np.generic], shape: tuple[int, ...]) -> Float32:
    if np.shape(value) != shape:
        raise EngineError(
            f"datum {index}: {key} has shape {list(np.shape(value))}; that of target_tokens is needed, {list(shape)}"
        )
    cells = np.asarray(value, np.float32).reshape(shape[0], -1)
    if not np.isfinite(cells).all():
        raise EngineError(f"datum {index}: {key} holds a value that is not finite")
    return cells
