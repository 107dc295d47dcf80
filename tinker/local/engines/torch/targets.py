"""What of a model LoRA can adapt: its linear modules, and the stacked weights of its experts.

Everything is found by its form, so that no family of models is known by name. What is found and cannot be adapted is
named, for a log line or a refusal.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import peft
import torch
import transformers

from tinker.local.engines.lora import LoraTarget

MIXES_TOKENS = re.compile(r"attn|attention|mamba|(^|[._])conv([._]|$)", re.IGNORECASE)
KEYS = frozenset({"k_proj", "qkv_proj", "query_key_value", "kv_a_proj_with_mqa"})  # of attention, whatever its module is called
ROUTERS = frozenset({"gate", "router"})
STACK_RULES = (
    "is_transposed",
    "has_bias",
    "has_gate",
)  # what transformers notes about experts that it can compute in several ways
STACKS = ("gate_up_proj", "up_proj", "down_proj")


@attrs.frozen
class FoundTargets:
    """The weights that can be adapted, and the names of those that cannot; ``odd_experts`` are stacks of unknown layout."""

    targets: Sequence[LoraTarget]
    left_out: Sequence[str]
    odd_experts: Sequence[str]


def find_targets(model: Any) -> FoundTargets:
    """Find every matrix of the language model: its head, those of layers that mix tokens (``attn``), and others (``mlp``)."""
    head, found, seen = model.get_output_embeddings(), list[LoraTarget](), set[str]()
    inside, refused = _prefix_of_decoder(model), _find_refused(model)
    for name, module in model.named_modules():
        if module is head or (name.startswith(inside) and name.rpartition(".")[2] not in refused):
            kind = "unembed" if module is head else "attn" if _mixes_tokens(model, name) else "mlp"
            new = list(_targets_of(model, name, module, kind))
            found += new
            seen |= {f"{one.name}.{one.parameter}" for one in new}
    rest = [(name, p) for name, p in model.named_parameters() if name not in seen and p.dim() > 1 and not name.endswith("bias")]
    left_out = [name for name, _ in rest if model.get_submodule(name.rpartition(".")[0]) is not model.get_input_embeddings()]
    odd = [name for name, p in rest if name.startswith(inside) and _is_stack_of_its_own(model, name, p)]
    return FoundTargets(found, left_out, odd)


def _prefix_of_decoder(model: Any) -> str:
    """Return the name prefix of the language model, which may stand next to a vision tower."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return next((f"{name}." for name, module in model.named_modules() if name and module is decoder), "")


def _mixes_tokens(model: Any, name: str) -> bool:
    """Return whether a module is part of one that mixes tokens: by its name, or because it holds keys or a convolution."""
    parent = name.rpartition(".")[0]
    parts = dict(model.get_submodule(parent).named_children())
    is_mixer = not KEYS.isdisjoint(parts) or any(isinstance(part, torch.nn.Conv1d) for part in parts.values())
    return is_mixer or MIXES_TOKENS.search(parent) is not None


def _find_refused(model: Any) -> frozenset[str]:
    """Return the last name parts of modules that PEFT adapts in no model of this kind: fast kernels bypass them."""
    leaves = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return frozenset(leaf for leaf in leaves if not _can_peft_adapt(model.config.model_type, leaf))


def _can_peft_adapt(model_type: str, leaf: str) -> bool:
    config: Any = transformers.PretrainedConfig()
    config.model_type, config.tie_word_embeddings = model_type, False  # of a tied head some versions of PEFT warn
    model: Any = torch.nn.ModuleDict({leaf: torch.nn.Linear(1, 1, device="meta")})
    model.config = config
    try:
        peft.inject_adapter_in_model(peft.LoraConfig(target_modules=[leaf]), model)
    except ValueError:
        return False
    return True


def _targets_of(model: Any, name: str, module: torch.nn.Module, kind: str) -> Iterator[LoraTarget]:
    if isinstance(module, torch.nn.Linear):
        if not _is_router(model, name):
            yield LoraTarget(name, name, kind, module.in_features, module.out_features)
        return
    stacks = _stacks(module)
    for index, (parameter, stack) in enumerate(stacks):
        key = name + ".base_layer" * (len(stacks) - 1 - index)
        inputs, outputs = stack.shape[1:] if getattr(module, "is_transposed", False) else stack.shape[:0:-1]
        yield LoraTarget(name, key, kind, inputs, outputs, parameter, len(stack), is_stack=True)


def _stacks(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the stacked weights of experts, where they follow the rules of transformers."""
    if not all(hasattr(module, rule) for rule in STACK_RULES):
        return []
    return [(name, p) for name, p in module.named_parameters(recurse=False) if name in STACKS and p.dim() == 3]


def _is_router(model: Any, name: str) -> bool:
    parent, _, leaf = name.rpartition(".")
    return leaf in ROUTERS and any("experts" in child for child, _ in model.get_submodule(parent).named_children())


def _is_stack_of_its_own(model: Any, name: str, parameter: torch.nn.Parameter) -> bool:
    """Return whether this is no matrix, nor the kernel of a convolution."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return parameter.dim() == 3 and not isinstance(owner, torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d)
