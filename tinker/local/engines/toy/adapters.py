"""Adapters of the toy: their matrices, the optimizer's state, and their files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.dimuon import orthogonal_direction
from tinker.local.engines.protocol import Adam, AdapterSpec, Dimuon, EngineError
from tinker.local.engines.toy.bigram import Tensors

ADAPTER_FILE, OPTIMIZER_FILE = "toy_adapter.npz", "toy_optimizer.npz"
MAX_ADAPTER_NBYTES = 1 << 26


@attrs.define(eq=False)
class ToyAdapter:
    """What one training run owns. ``gradient`` is None until something has accumulated."""

    spec: AdapterSpec
    tensors: Tensors
    first: Tensors
    second: Tensors
    steps: int = 0
    gradient: Tensors | None = None

    @classmethod
    def create(cls, spec: AdapterSpec, tensors: Tensors) -> ToyAdapter:
        return cls(spec, tensors, zeros_like(tensors), zeros_like(tensors))


def zeros_like(tensors: Tensors) -> Tensors:
    return {name: np.zeros_like(tensor) for name, tensor in tensors.items()}


def step_adam(adapter: ToyAdapter, gradient: Tensors, params: Adam) -> None:
    adapter.steps += 1
    for name, tensor in adapter.tensors.items():
        part = gradient[name]
        first = adapter.first[name] = params.beta1 * adapter.first[name] + (1 - params.beta1) * part
        second = adapter.second[name] = params.beta2 * adapter.second[name] + (1 - params.beta2) * part**2
        rate = params.learning_rate / (1 - params.beta1**adapter.steps)
        scale = np.sqrt(second / (1 - params.beta2**adapter.steps)) + params.eps
        step = np.divide(first, scale, out=np.zeros_like(first), where=scale > 0)
        adapter.tensors[name] = tensor * (1 - params.learning_rate * params.weight_decay) - rate * step


def step_dimuon(adapter: ToyAdapter, gradient: Tensors, params: Dimuon) -> None:
    adapter.steps += 1
    for name, tensor in adapter.tensors.items():
        momentum = adapter.first[name] = params.beta1 * adapter.first[name] + (1 - params.beta1) * gradient[name]
        adapter.tensors[name] = tensor - params.learning_rate * orthogonal_direction(momentum)


def moment_names(tensors: Tensors) -> set[str]:
    return {f"{moment}.{name}" for moment in ("first", "second") for name in tensors}


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    np.savez(path, allow_pickle=False, **dict(arrays))


def check_archive(path: Path) -> None:
    """Raise EngineError for a file that is no archive of arrays, or one that unpacks to more than any adapter."""
    try:
        with zipfile.ZipFile(path) as archive:
            nbytes = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise EngineError(f"{path.name} cannot be read: it is missing or damaged") from error
    if nbytes > MAX_ADAPTER_NBYTES:
        raise EngineError(f"{path.name} unpacks to more than {MAX_ADAPTER_NBYTES} bytes")


def read_arrays(path: Path, names: set[str]) -> dict[str, NDArray[np.float64]]:
    """Read the arrays of a file; nothing in it is executed. Raises EngineError when it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise EngineError(f"the checkpoint was not written by this engine: {path.name}: {error}") from error
