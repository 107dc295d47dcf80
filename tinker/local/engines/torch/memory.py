"""Memory: activations that are computed a second time instead of being kept, and free memory given
back to the system.

glibc keeps what torch has freed, in pieces that the next step's tensors do not fit.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from tinker.local.engines.opening import read_resident

SHARE = 0.5  # of the free memory; what a pass would keep beyond it is computed again
MEMINFO = Path("/proc/meminfo")


@contextmanager
def replace_forward(module: Any, forward: Callable[..., Any]) -> Generator[None]:
    """Replace the forward of a module inside the block."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


@contextmanager
def recompute_layers(model: Any, is_wanted: bool) -> Generator[None]:
    """Keep only the input of every layer in the passes inside the block. Results are the same."""
    layers = (
        [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
        if is_wanted
        else []
    )
    with ExitStack() as stack:
        for layer in layers:
            forward = functools.partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )
            stack.enter_context(replace_forward(layer, forward))
        yield


def is_useful(model: Any, cells: int) -> bool:
    """Return whether the activations of this many tokens would take too much of the free memory."""
    free = free_bytes(model.device)
    return free is not None and estimate_bytes(model.config.get_text_config(), cells) > SHARE * free


def estimate_bytes(config: Any, cells: int) -> int:
    """Estimate the activation memory of this many tokens: inputs of norms and modules, some twice,
    in float32.
    """
    hidden, layers = (
        int(getattr(config, "hidden_size", 0)),
        int(getattr(config, "num_hidden_layers", 1)),
    )
    inner = getattr(config, "intermediate_size", None)
    width = inner if isinstance(inner, int) else 4 * hidden
    return 4 * cells * layers * (20 * hidden + 6 * width)


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device in bytes; None if it is unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "cpu" and MEMINFO.is_file():
        found = [
            line.split()[1]
            for line in MEMINFO.read_text().splitlines()
            if line.startswith("MemAvailable:")
        ]
        return int(found[0]) * 1024 if found else None
    return None


def release_memory(device: torch.device) -> None:
    """Free torch's cached memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


SLACK = 128 << 20  # bytes by which the process may grow after its first step


def find_trim() -> Callable[[int], object] | None:
    """Return glibc's ``malloc_trim``; None on a system without it."""
    if not sys.platform.startswith("linux"):
        return None
    trim: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


class MemoryReturn:
    """Returns free memory to the system when the process has grown, so that a server does not grow
    with its steps.

    What a step has freed is kept for the next one: asking the system for it anew takes a quarter of
    a step of a small model. So the level is what the process has after the first step that follows,
    and growth beyond it is what goes back.
    """

    def __init__(
        self,
        trim: Callable[[int], object] | None,
        resident: Callable[[], int | None] = read_resident,
    ) -> None:
        self._trim, self._resident = trim, resident
        self._level: int | None = 0  # the first step gives back what loading the model left

    def count_step(self) -> None:
        """Count a step, and return free memory to the system if the process has grown."""
        if self._trim is None:
            return
        resident = self._resident() or 0
        if self._level is None:
            self._level = resident
        elif resident > self._level + SLACK:
            self._trim(0)
            self._level = None
