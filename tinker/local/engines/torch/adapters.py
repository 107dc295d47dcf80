"""The state of a training run, and optimizer steps."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch and transformers are typed in part only, and torch's functions of many tensors are public under private names)

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import torch

from tinker.local.engines.dimuon import orthogonal_direction
from tinker.local.engines.inputs import WEIGHTS_DIVERGED
from tinker.local.engines.protocol import Adam, Dimuon, EngineError
from tinker.local.engines.torch.lora import LoraWeights
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
