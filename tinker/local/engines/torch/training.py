"""What one training run owns, and its optimizer steps."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import torch

from tinker.local.engines.dimuon import orthogonal_direction
from tinker.local.engines.inputs import WEIGHTS_DIVERGED
from tinker.local.engines.protocol import Adam, Dimuon, EngineError
from tinker.local.engines.torch.experts import join_stack, split_stack
from tinker.local.engines.torch.lora import LoraWeights


@attrs.define(eq=False)
class TorchAdapter:
    """What one training run owns. ``gradient`` is None until something has accumulated."""

    weights: LoraWeights
    optimizer: torch.optim.AdamW
    gradient: list[torch.Tensor] | None = None

    @classmethod
    def create(cls, weights: LoraWeights) -> TorchAdapter:
        return cls(weights, torch.optim.AdamW(weights.tensors.values()))


def accumulate(before: list[torch.Tensor] | None, gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    if not math.isfinite(gradient_norm(gradient)):
        raise EngineError(f"the gradient is not finite: {WEIGHTS_DIVERGED}")
    return gradient if before is None else [a + b for a, b in zip(before, gradient)]


def gradient_norm(tensors: list[torch.Tensor]) -> float:
    norms = [torch.linalg.vector_norm(tensor) for tensor in tensors]
    return float(torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])))


def step_adam(
    optimizer: torch.optim.AdamW, parameters: list[torch.nn.Parameter], gradient: list[torch.Tensor], params: Adam
) -> None:
    optimizer.param_groups[0].update(
        lr=params.learning_rate,
        betas=(params.beta1, params.beta2),
        eps=params.eps,
        weight_decay=params.weight_decay,
    )
    for parameter, part in zip(parameters, gradient):
        parameter.grad = part
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def step_dimuon(optimizer: torch.optim.AdamW, weights: LoraWeights, gradient: Sequence[torch.Tensor], params: Dimuon) -> None:
    """Apply one step. AdamW's state only keeps the momentum, so that it is saved and loaded as Adam's is."""
    momenta: dict[str, torch.Tensor] = {}
    for (name, parameter), part in zip(weights.tensors.items(), gradient, strict=True):
        state = optimizer.state[parameter]
        before = state.get("momentum", torch.zeros_like(parameter))
        momenta[name] = state["momentum"] = params.beta1 * before + (1 - params.beta1) * part
    for name, direction in _find_directions(momenta, weights.experts).items():
        weights.tensors[name].sub_(params.learning_rate * direction)


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
