"""LoRA over one frozen model: the weights of an adapter, how fresh ones begin, and what PEFT calls them.

Weights live outside of the model, as plain parameters; ``mixture`` puts them on for a pass. So any number of them share
the base model, switching copies nothing, and a snapshot is freed with its last reference.
"""

# pyright: reportUnknownMemberType=false
# (torch and peft are typed in part only)

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import peft
import torch

from tinker.local.engines.protocol import AdapterSpec, EngineError
from tinker.local.engines.torch.targets import LoraTarget, find_targets

FUSED = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})  # PEFT takes these for experts, by their names
MOST_NAMES = 8  # in a log line


@attrs.frozen(kw_only=True, eq=False)
class LoraWeights:
    """The matrices of one adapter, float32, keyed ``<module>.lora_A.weight`` and ``<module>.lora_B.weight``.

    ``experts`` says which modules are stacks of experts, and of how many.
    """

    spec: AdapterSpec
    tensors: Mapping[str, torch.nn.Parameter]
    experts: Mapping[str, int]

    def is_finite(self) -> bool:
        """Return whether every number is one; it is not after training has diverged."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors.values())

    def replace(self, tensors: Sequence[torch.Tensor]) -> LoraWeights:
        """Return weights of the same names with these values, which are not copied."""
        return attrs.evolve(self, tensors={name: torch.nn.Parameter(one) for name, one in zip(self.tensors, tensors)})

    def freeze_copy(self) -> LoraWeights:
        copies = {name: torch.nn.Parameter(t.detach().clone(), requires_grad=False) for name, t in self.tensors.items()}
        return LoraWeights(spec=self.spec, tensors=copies, experts=self.experts)


class LoraTargets:
    """The matrices of a frozen model that adapters change.

    A head tied to the embedding is adapted beside the shared matrix; the embedding itself never changes. Raises
    ValueError for a model without matrices that can be adapted in its attention, its MLP and its head.
    """

    def __init__(self, model: Any) -> None:
        self._model = model.requires_grad_(False)
        found = find_targets(model)
        self.all: Sequence[LoraTarget] = found.targets
        self.left_out: Sequence[str] = found.left_out
        self._odd_experts = found.odd_experts
        kinds = {target.kind for target in self.all} | ({"mlp"} if self._odd_experts else set[str]())
        if missing := {"attn", "mlp", "unembed"} - kinds:
            names = " and ".join({"attn": "attention", "mlp": "MLP", "unembed": "head"}[kind] for kind in sorted(missing))
            raise ValueError(
                f"{type(model).__name__} is not supported: LoRA needs linear modules, and there are none in its {names}; "
                "Llama, Qwen, Gemma 3, Phi-3, gpt-oss, DeepSeek-V3 and most newer families work"
            )

    def describe_left_out(self) -> str:
        """Return the ends of the names of the matrices that no adapter changes, each once."""
        kinds = sorted({".".join(name.split(".")[-3:-1]) for name in self.left_out})
        more = f" and {len(kinds) - MOST_NAMES} more" if len(kinds) > MOST_NAMES else ""
        return ", ".join(kinds[:MOST_NAMES]) + more

    def fresh(self, spec: AdapterSpec, seed: int) -> LoraWeights:
        """Draw weights that change nothing yet: A uniform within 1/sqrt(inputs), on the CPU from the seed; B zero."""
        generator = torch.Generator().manual_seed(seed & (2**64 - 1))
        tensors: dict[str, torch.Tensor] = {}
        for target in self.choose(spec):
            bound = 1 / math.sqrt(target.inputs)
            (a, a_shape), (b, b_shape) = target.shapes(spec.rank).items()
            tensors[a] = torch.empty(a_shape).uniform_(-bound, bound, generator=generator)
            tensors[b] = torch.zeros(b_shape)
        return self.adopt(spec, tensors)

    def adopt(self, spec: AdapterSpec, tensors: Mapping[str, torch.Tensor]) -> LoraWeights:
        """Take these tensors as trainable weights. Raises EngineError when names or shapes do not fit the model."""
        expected = {name: shape for target in self.choose(spec) for name, shape in target.shapes(spec.rank).items()}
        given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if given != expected:
            wrong = sorted(name for name in given.keys() | expected.keys() if given.get(name) != expected.get(name))
            raise EngineError(f"the adapter does not fit the base model: {len(wrong)} tensors differ, first {wrong[0]}")
        devices = {name: self._device_of(target) for target in self.choose(spec) for name in target.shapes(spec.rank)}
        return LoraWeights(
            spec=spec,
            experts={target.key: target.experts for target in self.choose(spec) if target.is_stack},
            tensors={
                # in the order of the model, whatever that of a file is: the norm of a gradient is a sum in this order;
                # copied, because a tensor that was read from a file may still be that file, mapped into memory
                name: torch.nn.Parameter(tensors[name].to(device, torch.float32, copy=True))
                for name, device in devices.items()
            },
        )

    def _device_of(self, target: LoraTarget) -> torch.device:
        """Return where a target is; a model may be spread over several devices."""
        device: torch.device = next(self._model.get_submodule(target.name).parameters()).device
        return device

    def choose(self, spec: AdapterSpec) -> list[LoraTarget]:
        """Return the targets of this specification."""
        if spec.rank < 1:
            raise EngineError(f"rank is {spec.rank}; it must be at least 1")
        if spec.train_mlp and self._odd_experts:
            raise EngineError(
                f"the experts of {type(self._model).__name__} cannot be adapted here ({self._odd_experts[0]}); "
                "train without them: train_mlp=False"
            )
        wanted = {"attn": spec.train_attn, "mlp": spec.train_mlp, "unembed": spec.train_unembed}
        found = [target for target in self.all if wanted[target.kind]]
        if not found:
            raise EngineError("nothing to train: set at least one of train_attn, train_mlp and train_unembed")
        return found if spec.target_modules is None else _pick(found, spec.target_modules)

    def peft_config(self, spec: AdapterSpec, base_model: str) -> peft.LoraConfig:
        """Return the PEFT configuration that adapts the same weights with the same scale.

        Of a mixture of experts the matrices that PEFT would take for those of experts are named as parameters.
        """
        has_experts = any(target.is_stack for target in self.all)
        chosen = self.choose(spec)
        stacked = [one for one in chosen if one.is_stack or (has_experts and _leaf(one) in FUSED)]
        whole = spec.lora_alpha % 1 == 0
        parameters: dict[str, Any] = {"lora_alpha": int(spec.lora_alpha) if whole else spec.lora_alpha}  # PEFT takes any number
        if stacked:
            parameters["target_parameters"] = self._parameter_names(stacked)
        return peft.LoraConfig(
            r=spec.rank,
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
            target_modules=self._module_names([one for one in chosen if one not in stacked]),
            base_model_name_or_path=base_model,
            inference_mode=True,
            **parameters,
        )

    def _module_names(self, targets: list[LoraTarget]) -> list[str]:
        """Return last name parts where they single out exactly these modules, else full names."""
        leaves = {_leaf(target) for target in targets}
        same = [name for name, _ in self._model.named_modules() if name.rpartition(".")[2] in leaves]
        return sorted(leaves) if same == [target.name for target in targets] else [target.name for target in targets]

    def _parameter_names(self, targets: list[LoraTarget]) -> list[str]:
        """Return the last two parts of the module's name and the parameter's where that is enough, else full names."""
        full = [f"{target.name}.{target.parameter}" for target in targets]
        short = {".".join(name.split(".")[-3:]) for name in full}
        same = {name for name, _ in self._model.named_parameters() if ".".join(name.split(".")[-3:]) in short}
        return sorted(short) if same == set(full) else full


def _pick(targets: Sequence[LoraTarget], modules: Sequence[str]) -> list[LoraTarget]:
    """Return the targets with one of these ends of names. Raises EngineError for an end that no target has."""
    ends = tuple(f".{name}" for name in modules)
    names = {target: (f".{target.name}", f".{target.name}.{target.parameter}") for target in targets}
    for module, end in zip(modules, ends):
        if not any(name.endswith(end) for pair in names.values() for name in pair):
            there = ", ".join(sorted({_leaf(target) for target in targets}))
            raise EngineError(f"target_modules: {module!r} names no module that this adapter could change; there are {there}")
    return [target for target, pair in names.items() if any(name.endswith(ends) for name in pair)]


def _leaf(target: LoraTarget) -> str:
    return target.name.rpartition(".")[2]
