"""LoRA over one frozen model: which modules are adapted, fresh weights, and putting weights on for a forward pass.

PEFT does the arithmetic. It gets one named adapter per combination of rank and target modules, a *slot*; the weights of
an adapter or a snapshot live outside, as plain parameters, and are put into their slot only while they are in use. So
any number of them share the base model, switching copies nothing, and a snapshot is freed with its last reference.
"""

# pyright: reportUnknownMemberType=false
# (torch and peft are typed in part only)

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import peft
import torch
from peft.tuners.lora import LoraLayer

from tinker.local.engines import AdapterSpec, EngineError

ALPHA = 32  # the service fixes it: the update is scaled by 32 / rank


@attrs.frozen(kw_only=True, eq=False)
class LoraWeights:
    """The matrices of one adapter, float32, keyed ``<module>.lora_A.weight`` and ``<module>.lora_B.weight``."""

    spec: AdapterSpec
    tensors: Mapping[str, torch.nn.Parameter]

    def freeze_copy(self) -> LoraWeights:
        copies = {name: torch.nn.Parameter(t.detach().clone(), requires_grad=False) for name, t in self.tensors.items()}
        return LoraWeights(spec=self.spec, tensors=copies)


@attrs.frozen
class LinearModule:
    """A linear module that can be adapted; ``kind`` is ``attn``, ``mlp`` or ``unembed``."""

    name: str
    kind: str
    inputs: int
    outputs: int


def find_linear_modules(model: Any) -> list[LinearModule]:
    """Find every linear module: the output head is ``unembed``, those in an attention module ``attn``, others ``mlp``."""
    found: list[LinearModule] = []
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            attention = re.search(r"attn|attention", name.rpartition(".")[0], re.IGNORECASE)
            kind = "unembed" if module is head else "attn" if attention else "mlp"
            found.append(LinearModule(name, kind, module.in_features, module.out_features))
    return found


class LoraSlots:
    """Owns the PEFT layers inside a model, which it freezes and changes in place. One set of weights is on at a time.

    A head tied to the embedding is adapted beside the shared matrix; the embedding itself never changes. Raises
    ValueError for a model without plain linear modules in its attention, its MLP and its head.
    """

    def __init__(self, model: Any) -> None:
        self._model = model.requires_grad_(False)
        self._targets = find_linear_modules(model)
        if missing := {"attn", "mlp", "unembed"} - {target.kind for target in self._targets}:
            raise ValueError(f"{type(model).__name__} is not supported: no linear modules found for {sorted(missing)}")
        self._slots: dict[tuple[int, frozenset[str]], str] = {}
        self._idle = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def fresh(self, spec: AdapterSpec, seed: int) -> LoraWeights:
        """Draw weights that change nothing yet: A uniform within 1/sqrt(inputs), on the CPU from the seed; B zero."""
        generator = torch.Generator().manual_seed(seed & (2**64 - 1))
        tensors: dict[str, torch.Tensor] = {}
        for target in self.targets(spec):
            bound = 1 / math.sqrt(target.inputs)
            a = torch.empty(spec.rank, target.inputs).uniform_(-bound, bound, generator=generator)
            tensors[f"{target.name}.lora_A.weight"] = a
            tensors[f"{target.name}.lora_B.weight"] = torch.zeros(target.outputs, spec.rank)
        return self.adopt(spec, tensors)

    def adopt(self, spec: AdapterSpec, tensors: Mapping[str, torch.Tensor]) -> LoraWeights:
        """Take these tensors as trainable weights. Raises EngineError when names or shapes do not fit the model."""
        expected = {name: shape for target in self.targets(spec) for name, shape in _shapes(target, spec.rank)}
        given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if given != expected:
            wrong = sorted(name for name in given.keys() | expected.keys() if given.get(name) != expected.get(name))
            raise EngineError(f"the adapter does not fit the base model: {len(wrong)} tensors differ, first {wrong[0]}")
        device = self._model.device
        return LoraWeights(
            spec=spec,
            tensors={
                # copied, because a tensor that was read from a file may still be that file, mapped into memory
                name: torch.nn.Parameter(tensor.to(device, torch.float32, copy=True))
                for name, tensor in tensors.items()
            },
        )

    def targets(self, spec: AdapterSpec) -> list[LinearModule]:
        """Return the modules that this specification adapts."""
        if spec.rank < 1:
            raise EngineError(f"rank is {spec.rank}; it must be at least 1")
        wanted = {"attn": spec.train_attn, "mlp": spec.train_mlp, "unembed": spec.train_unembed}
        found = [target for target in self._targets if wanted[target.kind]]
        if not found:
            raise EngineError("nothing to train: set at least one of train_attn, train_mlp and train_unembed")
        return found

    def peft_config(self, spec: AdapterSpec, base_model: str) -> peft.LoraConfig:
        """Return the PEFT configuration that adapts the same modules with the same scale."""
        return peft.LoraConfig(
            r=spec.rank,
            lora_alpha=ALPHA,
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
            target_modules=self._shortest_names(self.targets(spec)),
            base_model_name_or_path=base_model,
            inference_mode=True,
        )

    @contextmanager
    def activate(self, weights: LoraWeights | None) -> Generator[None]:
        """Let the model compute with these weights inside the block; with None, it is the base model exactly."""
        slot = self._slot(weights.spec) if weights else None
        for layer in self._layers():
            layer.set_adapter([slot] if slot else [])
        if weights and slot:
            self._fill(slot, weights.tensors)
        try:
            yield
        finally:
            if weights and slot:
                self._fill(slot, dict.fromkeys(weights.tensors, self._idle))

    def _layers(self) -> Iterator[Any]:
        return (module for module in self._model.modules() if isinstance(module, LoraLayer))

    def _fill(self, slot: str, tensors: Mapping[str, torch.nn.Parameter]) -> None:
        for name, tensor in tensors.items():
            module, matrix = name.removesuffix(".weight").rsplit(".", 1)
            getattr(self._model.get_submodule(module), matrix)[slot].weight = tensor

    def _slot(self, spec: AdapterSpec) -> str:
        targets = self.targets(spec)
        key = (spec.rank, frozenset(target.kind for target in targets))
        if key not in self._slots:
            self._slots[key] = slot = f"slot{len(self._slots)}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PEFT notes that the head is tied and that adapters exist: both meant
                peft.inject_adapter_in_model(self.peft_config(spec, ""), self._model, adapter_name=slot)
            names = [name for target in targets for name, _ in _shapes(target, spec.rank)]
            self._fill(slot, dict.fromkeys(names, self._idle))
        return self._slots[key]

    def _shortest_names(self, targets: list[LinearModule]) -> list[str]:
        """Return last name parts where they single out exactly these modules, else full names."""
        leaves = {target.name.rpartition(".")[2] for target in targets}
        same = [target for target in self._targets if target.name.rpartition(".")[2] in leaves]
        return sorted(leaves) if same == targets else [target.name for target in targets]


def _shapes(target: LinearModule, rank: int) -> list[tuple[str, tuple[int, int]]]:
    return [
        (f"{target.name}.lora_A.weight", (rank, target.inputs)),
        (f"{target.name}.lora_B.weight", (target.outputs, rank)),
    ]
