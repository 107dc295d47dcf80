"""LoRA over one frozen model: the weights of an adapter, where they are, and the matrices that they change.

Weights live outside of the model, as plain parameters; ``mixture`` puts them on for a pass. So any number of them share
the base model, switching copies nothing, and a snapshot is freed with its last reference.
"""

# pyright: reportUnknownMemberType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from tinker.local.engines.lora import LoraFactors, LoraTarget, LoraTargets
from tinker.local.engines.protocol import AdapterSpec, EngineError
from tinker.local.engines.torch.targets import find_targets

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


class TorchTargets(LoraTargets):
    """The matrices of a frozen model that adapters change.

    A head tied to the embedding is adapted beside the shared matrix; the embedding itself never changes. Raises
    ValueError for a model without matrices that can be adapted in its attention, its MLP and its head.
    """

    def __init__(self, model: Any) -> None:
        self._model = model.requires_grad_(False)
        found = find_targets(model)
        names = ([name for name, _ in named] for named in (model.named_modules(), model.named_parameters()))
        super().__init__(found.targets, *names)
        self.left_out: Sequence[str] = found.left_out
        self._odd_experts = found.odd_experts
        kinds = {target.kind for target in self.all} | ({"mlp"} if self._odd_experts else set[str]())
        if missing := {"attn", "mlp", "unembed"} - kinds:
            words = " and ".join({"attn": "attention", "mlp": "MLP", "unembed": "head"}[kind] for kind in sorted(missing))
            raise ValueError(
                f"{type(model).__name__} is not supported: LoRA needs linear modules, and there are none in its {words}; "
                "Llama, Qwen, Gemma 3, Phi-3, gpt-oss, DeepSeek-V3 and most newer families work"
            )

    def describe_left_out(self) -> str:
        """Return the ends of the names of the matrices that no adapter changes, each once."""
        kinds = sorted({".".join(name.split(".")[-3:-1]) for name in self.left_out})
        more = f" and {len(kinds) - MOST_NAMES} more" if len(kinds) > MOST_NAMES else ""
        return ", ".join(kinds[:MOST_NAMES]) + more

    def choose(self, spec: AdapterSpec) -> list[LoraTarget]:
        """Return the targets of this specification. Raises EngineError, too, where experts cannot be adapted."""
        if spec.train_mlp and self._odd_experts and spec.rank >= 1:
            raise EngineError(
                f"the experts of {type(self._model).__name__} cannot be adapted here ({self._odd_experts[0]}); "
                "train without them: train_mlp=False"
            )
        return super().choose(spec)

    def adopt(self, spec: AdapterSpec, factors: LoraFactors) -> LoraWeights:
        """Take factors as trainable weights, each on the device of its matrix; a model may be spread over several."""
        targets = self.choose(spec)
        devices = {name: self._device_of(target) for target in targets for name in target.shapes(spec.rank)}
        tensors = {name: torch.tensor(factor, device=devices[name]) for name, factor in self.fit(spec, factors).items()}
        return LoraWeights(
            spec=spec,
            tensors={name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()},
            experts={target.key: target.experts for target in targets if target.is_stack},
        )

    def _device_of(self, target: LoraTarget) -> torch.device:
        device: torch.device = next(self._model.get_submodule(target.name).parameters()).device
        return device
