"""What users choose: optimizer, sampling and LoRA parameters. They are the wire's records, with their values checked."""

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
    """One step of Adam with decoupled weight decay. ValueError for what is no number."""

    def __post_init__(self) -> None:
        convert_numbers(self)


class DimuonParams(models.DimuonParams, frozen=True):
    """One step of Dimuon. ValueError for what is no number, or out of its range."""

    def __post_init__(self) -> None:
        convert_numbers(self)
        if not all(math.isfinite(value) for value in (self.learning_rate, self.grad_clip_norm)):
            raise ValueError("DimuonParams: learning_rate and grad_clip_norm must be finite")


class LoraConfig(models.LoraConfig, frozen=True):
    """Which parts of a model get an adapter, and of what rank. ValueError for what is no number."""

    def __post_init__(self) -> None:
        convert_numbers(self)


class SamplingParams(models.SamplingParams, frozen=True):
    """How to sample. ``stop`` is a text, texts, or token ids; an empty list disables every stop, the end of text included.

    ValueError for what is no number, and for stops that are neither.

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
