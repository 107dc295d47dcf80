"""Adapters: their weights and optimizer, optimizer steps, files, and import of adapters written by PEFT.

Nothing is pickled or unpickled. ``adapter_model.safetensors`` and ``adapter_config.json`` load with
``peft.PeftModel.from_pretrained``; beside them are the optimizer state, and a small JSON that says what they belong to.

PEFT scales an update by ``lora_alpha / r``, or by ``lora_alpha / sqrt(r)``; here it is ``AdapterSpec.scale``. The difference
goes into the matrices B, so that the adapter computes what it computed before. Modules that the adapter leaves alone, and that
are trained here, get matrices that change nothing yet.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch and transformers are typed in part only, and torch's functions of many tensors are public under private names)

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tinker.local.engines.dimuon import orthogonal_direction
from tinker.local.engines.inputs import NO_OPTIMIZER, WEIGHTS_DIVERGED
from tinker.local.engines.protocol import FILE_FORMAT, Adam, AdapterSpec, Dimuon, EngineError, check_format
from tinker.local.engines.torch.lora import LoraTargets, LoraWeights
from tinker.local.engines.torch.mixture import join_stack, split_stack


@attrs.define(eq=False)
class TorchAdapter:
    """The state of one training run, which a step replaces as a whole; ``gradient`` is None until one has been accumulated.

    ``moments`` are the optimizer's, by their names; each list is in the order of the weights. Empty before the first step.
    """

    weights: LoraWeights
    moments: Mapping[str, list[torch.Tensor]] = attrs.field(factory=lambda: dict[str, list[torch.Tensor]]())
    gradient: list[torch.Tensor] | None = None

    def find_moments(self, name: str) -> list[torch.Tensor]:
        """Return the moments of that name; zeros before the first step."""
        return self.moments.get(name) or [torch.zeros_like(tensor) for tensor in self.weights.tensors.values()]


def accumulate(before: list[torch.Tensor] | None, gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    if not math.isfinite(gradient_norm(gradient)):
        raise EngineError(f"the gradient is not finite: {WEIGHTS_DIVERGED}")
    return gradient if before is None else [a + b for a, b in zip(before, gradient)]


def gradient_norm(tensors: list[torch.Tensor]) -> float:
    norms = [torch.linalg.vector_norm(tensor) for tensor in tensors]
    return float(torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])))


@torch.no_grad()
def step_adam(adapter: TorchAdapter, gradient: list[torch.Tensor], params: Adam) -> TorchAdapter:
    """Return the adapter after a step of AdamW, as ``torch.optim`` computes it; the given one stays as it is."""
    before: list[torch.Tensor] = list(adapter.weights.tensors.values())
    counts = adapter.moments.get("step") or [torch.tensor(0.0) for _ in before]
    count = float(counts[0]) + 1
    first = torch._foreach_lerp(adapter.find_moments("exp_avg"), gradient, 1 - params.beta1)
    second = torch._foreach_mul(adapter.find_moments("exp_avg_sq"), params.beta2)
    torch._foreach_addcmul_(second, gradient, gradient, 1 - params.beta2)
    scale = torch._foreach_sqrt(second)
    torch._foreach_div_(scale, math.sqrt(1 - params.beta2**count))
    torch._foreach_add_(scale, params.eps)
    after = torch._foreach_mul(before, 1 - params.learning_rate * params.weight_decay)
    torch._foreach_addcdiv_(after, first, scale, -params.learning_rate / (1 - params.beta1**count))
    moments = {"step": [one + 1 for one in counts], "exp_avg": list(first), "exp_avg_sq": list(second)}
    return TorchAdapter(adapter.weights.replace(after), moments)


@torch.no_grad()
def step_dimuon(adapter: TorchAdapter, gradient: list[torch.Tensor], params: Dimuon) -> TorchAdapter:
    """Return the adapter after a step; the given one stays as it is."""
    before = adapter.find_moments("momentum")
    momentum = [params.beta1 * old + (1 - params.beta1) * part for old, part in zip(before, gradient, strict=True)]
    directions = _find_directions(dict(zip(adapter.weights.tensors, momentum)), adapter.weights.experts)
    after = [weight - params.learning_rate * directions[name] for name, weight in adapter.weights.tensors.items()]
    return TorchAdapter(adapter.weights.replace(after), {"momentum": momentum})


def _find_directions(momenta: Mapping[str, torch.Tensor], experts: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Return the direction of each matrix; in a stack of experts, that of each expert's matrix."""
    found: dict[str, torch.Tensor] = {}
    for down in (name for name in momenta if ".lora_A." in name):
        up, key = down.replace(".lora_A.", ".lora_B."), down.rpartition(".lora_")[0]
        pair = momenta[down], momenta[up]
        if key in experts:
            first, second = split_stack(*pair, experts[key])
            found[down], found[up] = join_stack(orthogonal_direction(first), orthogonal_direction(second))
        else:
            found[down], found[up] = map(orthogonal_direction, pair)
    return found


WEIGHTS = "adapter_model.safetensors"
OPTIMIZER = "optimizer.safetensors"
ABOUT = "adapter.json"
PEFT_PREFIX = "base_model.model."


def write_weights(directory: Path, targets: LoraTargets, weights: LoraWeights, base_model: str) -> None:
    tensors = {PEFT_PREFIX + name: t.detach().cpu().contiguous() for name, t in weights.tensors.items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    targets.peft_config(weights.spec, base_model).save_pretrained(str(directory))
    about = {"format": FILE_FORMAT, "base_model": base_model, "spec": attrs.asdict(weights.spec)}
    (directory / ABOUT).write_text(json.dumps(about, indent=2) + "\n")


def read_weights(directory: Path, targets: LoraTargets, base_model: str) -> LoraWeights:
    """Read an adapter. Raises EngineError when the folder is incomplete or was trained over another base model."""
    try:
        about = json.loads((directory / ABOUT).read_text())
        check_format(ABOUT, int(about.get("format", FILE_FORMAT)))
        tensors = load_file(directory / WEIGHTS)
        spec, trained_on = AdapterSpec(**about["spec"]), about["base_model"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = type(error).__name__
        raise EngineError(f"the checkpoint cannot be read ({reason}): files are missing or damaged") from error
    if trained_on != base_model:
        raise EngineError(f"the checkpoint belongs to the base model {trained_on!r}; this server runs {base_model!r}")
    return targets.adopt(spec, {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()})


def write_optimizer(directory: Path, adapter: TorchAdapter) -> None:
    """Write the moments under the names of the weights and their own."""
    names = adapter.weights.tensors
    flat = {f"{name}:{key}": one.cpu() for key, moments in adapter.moments.items() for name, one in zip(names, moments)}
    save_file(flat, directory / OPTIMIZER)


def read_optimizer(directory: Path, weights: LoraWeights) -> dict[str, list[torch.Tensor]]:
    """Read the moments of these weights. Raises EngineError when the folder holds none."""
    try:
        flat = load_file(directory / OPTIMIZER)
    except (OSError, SafetensorError) as error:
        raise EngineError(NO_OPTIMIZER) from error
    found: dict[str, list[torch.Tensor]] = {}
    for key in sorted({name.rpartition(":")[2] for name in flat}):
        for name, weight in weights.tensors.items():
            device = torch.device("cpu") if key == "step" else weight.device
            found.setdefault(key, []).append(flat[f"{name}:{key}"].to(device, copy=True))
    return found


CONFIG = "adapter_config.json"
PEFT_FILES = frozenset({WEIGHTS, CONFIG})
MAX_CONFIG_NBYTES = 1 << 20
A, B = ".lora_A.weight", ".lora_B.weight"
#: What of PEFT's LoRA this engine does not compute; absent or empty is fine.
UNKNOWN_OPTIONS = (
    "use_dora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "fan_in_fan_out",
    "trainable_token_indices",
    "megatron_config",
)


def read_peft_adapter(folder: Path, targets: LoraTargets, spec: AdapterSpec) -> LoraWeights:
    """Read an adapter. Raises EngineError if it is damaged, or does not fit this specification and model."""
    scale = _read_scale(_read_config(folder / CONFIG), spec)
    given = _read_tensors(folder / WEIGHTS)
    for name in given:
        if not name.endswith((A, B)) or _partner(name) not in given:
            raise EngineError(f"{WEIGHTS}: {name} is not half of a pair of LoRA matrices")
    _check_stacks(given, targets)
    scaled = {name: tensor * scale if name.endswith(B) else tensor for name, tensor in given.items()}
    fresh = targets.fresh(spec, spec.seed or 0).tensors
    return targets.adopt(spec, {**fresh, **scaled})


def _check_stacks(given: Mapping[str, torch.Tensor], targets: LoraTargets) -> None:
    """Raise EngineError where PEFT's names do not say which of a module's parameters they belong to."""
    keys: dict[str, set[str]] = {}
    for target in targets.all:
        if target.is_stack:
            keys.setdefault(target.name, set()).add(target.key)
    for name, all_keys in keys.items():
        found = {key for key in all_keys if f"{key}{A}" in given}
        if found and found != all_keys:
            raise EngineError(f"{WEIGHTS}: of {name} one parameter is adapted and another is not; adapt all or none")


def _partner(name: str) -> str:
    return name.removesuffix(A) + B if name.endswith(A) else name.removesuffix(B) + A


def _read_config(file: Path) -> Mapping[str, Any]:
    try:
        if file.stat().st_size > MAX_CONFIG_NBYTES:
            raise EngineError(f"{CONFIG} is larger than {MAX_CONFIG_NBYTES} bytes")
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"{CONFIG} cannot be read: {type(error).__name__}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise EngineError(f"{CONFIG} does not describe a LoRA adapter of PEFT")
    return config


def _read_scale(config: Mapping[str, Any], spec: AdapterSpec) -> float:
    """Return the factor for the matrices B. Raises EngineError for an unsupported option."""
    if (unknown := next((name for name in UNKNOWN_OPTIONS if config.get(name)), None)) is not None:
        raise EngineError(f"{CONFIG}: {unknown} is not supported here")
    if config.get("bias", "none") != "none":
        raise EngineError(f"{CONFIG}: bias {config['bias']!r} is not supported here; it must be 'none'")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if rank != spec.rank or isinstance(rank, bool):
        raise EngineError(f"{CONFIG}: r is {rank!r}, and the upload was announced with rank {spec.rank}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise EngineError(f"{CONFIG}: lora_alpha is {alpha!r}; it must be a number")
    return alpha / spec.lora_alpha * (math.sqrt(spec.rank) if config.get("use_rslora") else 1.0)


def _read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors by the names they have in the model, as float32."""
    try:
        found = load_file(file)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{WEIGHTS} cannot be read ({type(error).__name__}): it is missing or damaged") from error
    if not found:
        raise EngineError(f"{WEIGHTS} contains no adapter")
    if strange := next((name for name in found if not name.startswith(PEFT_PREFIX)), None):
        raise EngineError(f"{WEIGHTS}: {strange!r} is not the name of a weight of PEFT")
    tensors = {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in found.items()}
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise EngineError(f"{WEIGHTS}: {name} must contain only finite numbers")
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
