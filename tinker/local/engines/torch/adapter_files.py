"""The files of a saved adapter: PEFT's own two, the optimizer state, and a small JSON that says what they belong to.

``adapter_model.safetensors`` and ``adapter_config.json`` load with ``peft.PeftModel.from_pretrained``. Nothing is
pickled.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (safetensors and peft are typed in part only)

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tinker.local.engines import AdapterSpec, EngineError
from tinker.local.engines.torch.lora import LoraTargets, LoraWeights

WEIGHTS = "adapter_model.safetensors"
OPTIMIZER = "optimizer.safetensors"
ABOUT = "adapter.json"
PEFT_PREFIX = "base_model.model."


def write_weights(directory: Path, targets: LoraTargets, weights: LoraWeights, base_model: str) -> None:
    tensors = {PEFT_PREFIX + name: t.detach().cpu().contiguous() for name, t in weights.tensors.items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    targets.peft_config(weights.spec, base_model).save_pretrained(str(directory))
    about = {"format": 1, "base_model": base_model, "spec": attrs.asdict(weights.spec)}
    (directory / ABOUT).write_text(json.dumps(about, indent=2) + "\n")


def read_weights(directory: Path, targets: LoraTargets, base_model: str) -> LoraWeights:
    """Read an adapter. Raises EngineError when the folder is incomplete or was trained over another base model."""
    try:
        about = json.loads((directory / ABOUT).read_text())
        tensors = load_file(directory / WEIGHTS)
        spec, trained_on = AdapterSpec(**about["spec"]), about["base_model"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        reason = type(error).__name__
        raise EngineError(f"the checkpoint cannot be read ({reason}): files are missing or damaged") from error
    if trained_on != base_model:
        raise EngineError(f"the checkpoint belongs to the base model {trained_on!r}; this server runs {base_model!r}")
    return targets.adopt(spec, {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()})


def write_optimizer(directory: Path, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Write ``state``, which maps a weight's name to its AdamW values; empty before the first step."""
    flat = {f"{name}:{key}": t.detach().cpu() for name, values in state.items() for key, t in values.items()}
    save_file(flat, directory / OPTIMIZER)


def read_optimizer(directory: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Read the optimizer's state. Raises EngineError when the folder holds none."""
    try:
        flat = load_file(directory / OPTIMIZER)
    except (OSError, SafetensorError) as error:
        raise EngineError("the checkpoint contains no optimizer state; load it without the optimizer") from error
    state: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in flat.items():
        name, _, value = key.rpartition(":")
        state.setdefault(name, {})[value] = tensor
    return state
