"""The files of an adapter, the same for every engine of a transformers model, and adapters written
by PEFT.

Nothing is pickled or unpickled. ``adapter_model.safetensors`` and ``adapter_config.json`` load with
``peft.PeftModel.from_pretrained``; beside them are the optimizer state, and a small JSON that says
what they belong to.

PEFT scales an update by ``lora_alpha / r``, or by ``lora_alpha / sqrt(r)``; here it is
``AdapterSpec.scale``. The difference goes into the matrices B, so that the adapter computes what it
computed before. Modules that the adapter leaves alone, and that are trained here, get matrices that
change nothing yet.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (safetensors is typed in part only)

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tinker._checkpoints import CONFIG, PEFT_PREFIX, WEIGHTS, check_config, read_json
from tinker.local.engines.inputs import NO_OPTIMIZER
from tinker.local.engines.lora import LoraFactors, LoraTargets
from tinker.local.engines.protocol import (
    FILE_FORMAT,
    Adapter,
    AdapterSpec,
    EngineError,
    Float32,
    LocalEngine,
    check_format,
)

# of an optimizer, by their names and those of the factors; empty before the first step
Moments = Mapping[str, LoraFactors]
PEFT_FILES = frozenset({WEIGHTS, CONFIG})
OPTIMIZER, ABOUT = "optimizer.safetensors", "adapter.json"
A, B = ".lora_A.weight", ".lora_B.weight"
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def read_tensors(file: Path) -> dict[str, Float32]:
    """Return the tensors of a file as float32. Raises EngineError for one that has no
    floating-point numbers.
    """
    found: dict[str, Float32] = {}
    for name, one in safetensors.deserialize(file.read_bytes()):  # type: ignore[no-untyped-call]
        if one["dtype"] not in _FLOATS:
            raise EngineError(
                f"{file.name}: {name.removeprefix(PEFT_PREFIX)} must contain only finite numbers"
            )
        numbers: NDArray[Any] = np.frombuffer(one["data"], _FLOATS[one["dtype"]])
        if one["dtype"] == "BF16":  # the upper half of a float32, which numpy does not know
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        found[name] = numbers.astype(np.float32).reshape(one["shape"])
    return found


def write_weights(
    directory: Path, targets: LoraTargets, spec: AdapterSpec, factors: LoraFactors, base_model: str
) -> None:
    save_file(
        {PEFT_PREFIX + name: factor for name, factor in factors.items()},
        directory / WEIGHTS,
        {"format": "pt"},
    )
    about = {"format": FILE_FORMAT, "base_model": base_model, "spec": attrs.asdict(spec)}
    for name, content in ((CONFIG, targets.peft_config(spec, base_model)), (ABOUT, about)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def read_weights(
    directory: Path, targets: LoraTargets, base_model: str
) -> tuple[AdapterSpec, dict[str, Float32]]:
    """Read an adapter. Raises EngineError when the folder is incomplete or was trained over another
    base model.
    """
    try:
        about = json.loads((directory / ABOUT).read_text())
        check_format(ABOUT, int(about.get("format", FILE_FORMAT)))
        tensors = read_tensors(directory / WEIGHTS)
        spec, trained_on = AdapterSpec(**about["spec"]), about["base_model"]
    except (
        OSError,
        safetensors.SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        reason = type(error).__name__
        raise EngineError(
            f"the checkpoint cannot be read ({reason}): files are missing or damaged"
        ) from error
    if trained_on != base_model:
        raise EngineError(
            f"the checkpoint belongs to the base model {trained_on!r}; "
            f"this server runs {base_model!r}"
        )
    factors = {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()}
    spec = targets.narrow(spec, factors)
    return spec, targets.fit(spec, factors)


def write_optimizer(directory: Path, moments: Moments) -> None:
    """Write the moments under the names of the weights and their own."""
    save_file(
        {f"{name}:{key}": one for key, all_of in moments.items() for name, one in all_of.items()},
        directory / OPTIMIZER,
    )


def read_optimizer(directory: Path, factors: LoraFactors) -> dict[str, dict[str, Float32]]:
    """Read the moments of these weights. Raises EngineError when the folder holds none."""
    try:
        flat = read_tensors(directory / OPTIMIZER)
    except (OSError, safetensors.SafetensorError) as error:
        raise EngineError(NO_OPTIMIZER) from error
    keys = sorted({name.rpartition(":")[2] for name in flat})
    return {key: {name: flat[f"{name}:{key}"] for name in factors} for key in keys}


def read_peft_adapter(folder: Path, targets: LoraTargets, spec: AdapterSpec) -> dict[str, Float32]:
    """Read an adapter. Raises EngineError if it is damaged, or does not fit this specification and
    model.
    """
    scale = _read_scale(folder / CONFIG, spec)
    given = _read_peft_tensors(folder / WEIGHTS)
    for name in given:
        if not name.endswith((A, B)) or _partner(name) not in given:
            raise EngineError(f"{WEIGHTS}: {name} is not half of a pair of LoRA matrices")
    _check_stacks(given, targets)
    scaled = {
        name: tensor * np.float32(scale) if name.endswith(B) else tensor
        for name, tensor in given.items()
    }
    return targets.fit(spec, {**targets.draw(spec, spec.seed or 0), **scaled})


def _check_stacks(given: LoraFactors, targets: LoraTargets) -> None:
    """Raise EngineError where PEFT's names do not say which of a module's parameters they belong
    to.
    """
    keys: dict[str, set[str]] = {}
    for target in targets.all:
        if target.is_stack:
            keys.setdefault(target.name, set()).add(target.key)
    for name, all_keys in keys.items():
        found = {key for key in all_keys if f"{key}{A}" in given}
        if found and found != all_keys:
            raise EngineError(
                f"{WEIGHTS}: of {name} one parameter is adapted and another is not; "
                "adapt all or none"
            )


def _partner(name: str) -> str:
    return name.removesuffix(A) + B if name.endswith(A) else name.removesuffix(B) + A


def _read_scale(file: Path, spec: AdapterSpec) -> float:
    """Return the factor for the matrices B. Raises EngineError for a file that is damaged, or of an
    unsupported adapter.
    """
    try:
        config = read_json(file)
        rank, scale = check_config(config)
    except OSError as error:
        raise EngineError(f"{CONFIG} cannot be read: {type(error).__name__}") from error
    except ValueError as error:
        raise EngineError(str(error)) from error
    if rank != spec.rank:
        raise EngineError(
            f"{CONFIG}: r is {rank!r}, and the upload was announced with rank {spec.rank}"
        )
    return scale / spec.scale


def _read_peft_tensors(file: Path) -> dict[str, Float32]:
    """Return the tensors by the names they have in the model."""
    try:
        found = read_tensors(file)
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"{WEIGHTS} cannot be read ({type(error).__name__}): it is missing or damaged"
        ) from error
    if not found:
        raise EngineError(f"{WEIGHTS} contains no adapter")
    if strange := next((name for name in found if not name.startswith(PEFT_PREFIX)), None):
        raise EngineError(f"{WEIGHTS}: {strange!r} is not the name of a weight of PEFT")
    for name, tensor in found.items():
        if not np.isfinite(tensor).all():
            raise EngineError(
                f"{WEIGHTS}: {name.removeprefix(PEFT_PREFIX)} must contain only finite numbers"
            )
    return {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in found.items()}


class PeftEngine(LocalEngine[Adapter]):
    """An engine of a model of transformers, whose adapters are files that PEFT reads, too."""

    base_model: str
    adapter_files: frozenset[str] = PEFT_FILES
    _targets: LoraTargets

    def _create(self, spec: AdapterSpec, seed: int) -> Adapter:
        return self._assemble(spec, self._targets.draw(spec, seed), {})

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the adapter. Gradients that no optimizer step has applied yet are not saved."""
        spec, factors, moments = self._take_apart(self._adapter(adapter_id))
        write_weights(directory, self._targets, spec, factors, self.base_model)
        if optimizer:
            write_optimizer(directory, moments)

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        spec, factors = read_weights(directory, self._targets, self.base_model)
        self._adapters[adapter_id] = self._assemble(
            spec, factors, read_optimizer(directory, factors) if optimizer else {}
        )
        return spec

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        """Take PEFT's two files."""
        factors = read_peft_adapter(source, self._targets, spec)
        write_weights(directory, self._targets, spec, factors, self.base_model)

    def _assemble(self, spec: AdapterSpec, factors: LoraFactors, moments: Moments) -> Adapter:
        """Make an adapter of its parts."""
        raise NotImplementedError

    def _take_apart(self, adapter: Adapter) -> tuple[AdapterSpec, LoraFactors, Moments]:
        """Return the parts of an adapter."""
        raise NotImplementedError
