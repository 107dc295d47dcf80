"""Parameters of optimizers, sampling and LoRA. They are the wire's records, with their values checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import msgspec.structs
import numpy as np
from tinker_wire import models
from tinker_wire.models import AdamOptimizerConfig, DimuonOptimizerConfig, LossFnType

from tinker.types._values import convert_numbers


class AdamParams(models.AdamParams, frozen=True):
    """Set the parameters of one step of Adam with decoupled weight decay. Raises ValueError for a value that is not a number.

    Attributes:
        learning_rate (float): The learning rate, 1e-4 by default.
        beta1 (float): The decay of the first moment, 0.9 by default.
        beta2 (float): The decay of the second moment, 0.95 by default.
        eps (float): The term that keeps the denominator from zero, 1e-12 by default.
        weight_decay (float): The decoupled weight decay, 0 by default.
        grad_clip_norm (float): The largest global norm of the gradient; 0, the default, does not clip.
    """

    def __post_init__(self) -> None:
        convert_numbers(self)


class DimuonParams(models.DimuonParams, frozen=True):
    """Set the parameters of one step of Dimuon. Raises ValueError for a value that is not a number, or out of its range.

    Attributes:
        learning_rate (float): The learning rate, 0 or more.
        grad_clip_norm (float): The largest global norm of the gradient; 0, the default, and less do not clip.
        beta1 (float): The momentum, from 0 to below 1, 0.9 by default.
    """

    def __post_init__(self) -> None:
        convert_numbers(self)
        if not all(math.isfinite(value) for value in (self.learning_rate, self.grad_clip_norm)):
            raise ValueError("DimuonParams: learning_rate and grad_clip_norm must be finite")


class LoraConfig(models.LoraConfig, frozen=True):
    """Choose the parts of a model that get an adapter, and its rank. Raises ValueError for a value that is not a number.

    Attributes:
        rank (int): The rank of the adapter's matrices.
        seed (int | None): The seed of the adapter's initial weights; None, the default, lets the server choose.
        train_unembed (bool): Whether the output layer gets an adapter, True by default.
        train_mlp (bool): Whether MLP layers and experts get an adapter, True by default.
        train_attn (bool): Whether attention layers get an adapter, True by default.
    """

    def __post_init__(self) -> None:
        convert_numbers(self)


class SamplingParams(models.SamplingParams, frozen=True):
    """Set how to sample. Raises ValueError for a value that is not a number, and for stops of the wrong type.

    Attributes:
        max_tokens (int | None): The largest number of tokens; None, the default, samples to the end of the context.
        seed (int | None): The seed of the sampling; None, the default, lets the server choose.
        stop (str | Sequence[str] | Sequence[int] | None): A text, texts, or token ids at which to stop. None, the default,
            stops at the end of the text; an empty list disables every stop, that one included.
        temperature (float): The temperature, 1 by default; 0 always takes the most likely token.
        top_k (int): The number of most likely tokens to choose from; -1, the default, means all.
        top_p (float): The probability mass of most likely tokens to choose from, 1 by default.

    >>> SamplingParams(max_tokens=8, temperature=0, stop=["\\n"]).temperature
    0.0
    """

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "stop", _stops(self.stop))
        convert_numbers(self)


def _stops(stop: object) -> str | list[str] | list[int] | None:
    if stop is None or isinstance(stop, str):
        return stop
    listed: Callable[[], object] | None = getattr(stop, "tolist", None)
    stops = stop if listed is None else listed()
    if not isinstance(stops, Sequence):
        raise ValueError(f"SamplingParams.stop: expected texts or token ids, got {type(stop).__name__}")
    items = cast("Sequence[object]", stops)
    if all(isinstance(item, str) for item in items):
        return cast("list[str]", list(items))
    if all(isinstance(item, (int, np.integer)) for item in items):
        return [int(cast("int", item)) for item in items]
    raise ValueError(f"SamplingParams.stop: expected only texts or only token ids, got {stop!r}")


OptimParams: TypeAlias = AdamParams | DimuonParams
OptimizerConfig: TypeAlias = AdamOptimizerConfig | DimuonOptimizerConfig

__all__ = [
    "AdamOptimizerConfig",
    "AdamParams",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "LoraConfig",
    "LossFnType",
    "OptimParams",
    "OptimizerConfig",
    "SamplingParams",
]
