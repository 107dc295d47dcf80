"""Which device a model is on, and in what numbers: what was asked for, as this machine has it."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

import attrs
import torch

from tinker.local.engines import Placement


@attrs.frozen
class TorchPlace:
    """A device of this machine, the numbers of the model, and how transformers spreads it; None: it is on that device."""

    device: torch.device
    dtype: torch.dtype
    device_map: str | None = None


def find_place(placement: Placement) -> TorchPlace:
    """Find the device. Raises ValueError, in one sentence, for one that this machine does not have."""
    device = torch.device(_choose_device() if placement.device == "auto" else placement.device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' is not available: this torch build finds no Apple GPU")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {placement.device!r} is not available: this torch finds {torch.cuda.device_count()} CUDA GPUs"
        )
    if placement.dtype == "auto":
        return TorchPlace(device, torch.bfloat16 if device.type == "cuda" else torch.float32, placement.device_map)
    return TorchPlace(device, getattr(torch, placement.dtype), placement.device_map)


def _choose_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def find_devices() -> list[str]:
    """Return the devices that a model can be on here, the CPU first.

    >>> find_devices()[0]
    'cpu'
    """
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]
