"""The names of the models that come with the package, and where an engine puts its model, and in what numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import attrs

PACKAGED_FOLDER = Path(__file__).resolve().parent.parent / "base_model"
PACKAGED_MODEL = "tinker/babble"
TOY_MODEL = "tinker/toy"
DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
DeviceMap: TypeAlias = Literal["auto", "balanced", "balanced_low_0", "sequential"]
Recompute: TypeAlias = Literal["auto", "always", "never"]
_DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?|mps")


def _check_device(placement: Placement, field: attrs.Attribute[str], value: str) -> None:
    if not _DEVICES.fullmatch(value):
        raise ValueError(f"device is {value!r}; it must be auto, cpu, cuda, cuda:N or mps")


def _check_dtype(placement: Placement, field: attrs.Attribute[DType], value: DType) -> None:
    if value not in get_args(DType):
        raise ValueError(f"dtype is {value!r}; it must be one of {', '.join(get_args(DType))}")


def _check_recompute(placement: Placement, field: attrs.Attribute[Recompute], value: Recompute) -> None:
    if value not in get_args(Recompute):
        raise ValueError(f"recompute is {value!r}; it must be one of {', '.join(get_args(Recompute))}")


def _check_map(placement: Placement, field: attrs.Attribute[DeviceMap | None], value: DeviceMap | None) -> None:
    if value is not None and value not in get_args(DeviceMap):
        raise ValueError(f"device_map is {value!r}; it must be one of {', '.join(get_args(DeviceMap))}")
    if value is not None and placement.device != "auto":
        raise ValueError(f"device {placement.device!r} and device_map {value!r} cannot be combined")


@attrs.frozen(kw_only=True)
class Placement:
    """Where the model is and in what numbers; adapters are float32 beside it, whatever the numbers of the model.

    ``device``: ``cpu``, ``cuda`` or ``cuda:1``, ``mps``, or ``auto``: the first GPU that CUDA or ROCm has, else the CPU.
    ``dtype``: of the model; ``auto`` is bfloat16 with CUDA, else float32. ``device_map``: how transformers spreads the model
    over all GPUs; None keeps it on one device. ``recompute``: whether the backward pass computes activations again instead of
    keeping them, which takes less memory and more time; ``auto`` where they would take half of what is free. Raises
    ValueError for any other value.

    >>> Placement(device="cuda:1", dtype="bfloat16")
    Placement(device='cuda:1', dtype='bfloat16', device_map=None, recompute='auto')
    """

    device: str = attrs.field(default="auto", validator=_check_device)
    dtype: DType = attrs.field(default="auto", validator=_check_dtype)
    device_map: DeviceMap | None = attrs.field(default=None, validator=_check_map)
    recompute: Recompute = attrs.field(default="auto", validator=_check_recompute)
