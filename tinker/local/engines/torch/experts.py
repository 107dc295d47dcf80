"""Experts with adapters: what a mixture of experts computes when each expert's matrices have LoRA factors of their own.

transformers keeps the matrices of all experts of a layer in one tensor, and says by a few attributes how they are laid
out. PEFT adds the factors to the whole tensor; here they are applied to the tokens that an expert is given, so that
nothing of the tensor's size is made, and each token can have the adapter of its row.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch.nn import functional


@attrs.frozen(eq=False)
class StackFactors:
    """The factors of each expert: ``down`` ``[experts, rank, in]``, ``up`` ``[experts, out, rank]``.

    ``scale`` is ``[rows, 1, rank]``, or a number when all rows share one.
    """

    down: torch.Tensor
    up: torch.Tensor
    scale: torch.Tensor | float

    def delta(self, expert: int, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Compute what is added to the outputs of one expert; ``rows`` are those of the inputs."""
        inner = functional.linear(inputs.to(self.down), self.down[expert])
        if not isinstance(self.scale, torch.Tensor):
            return functional.linear(inner, self.up[expert]) * self.scale
        scale = self.scale[rows, 0]
        return functional.linear(torch.where(scale == 0, 0.0, inner * scale), self.up[expert])


def split_stack(a: torch.Tensor, b: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Take PEFT's factors of a stack apart: ``[experts, rank, in]`` and ``[experts, out, rank]``."""
    return a.reshape(experts, -1, a.shape[-1]), b.reshape(b.shape[0], -1, experts).permute(2, 0, 1)


def join_stack(down: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Undo :func:`split_stack`."""
    return down.reshape(-1, down.shape[-1]), up.permute(1, 2, 0).reshape(up.shape[1], -1)


def compute_experts(
    module: Any,
    factors: Mapping[str, StackFactors],
    rows: int,
    hidden: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Compute the experts of a layer, as transformers does, with ``factors`` by the name of the parameter.

    ``hidden`` is ``[tokens, size]``, row after row of the batch; ``index`` and ``weights`` ``[tokens, chosen]`` say which
    experts each token is given to.
    """
    tokens, chosen = index.shape
    experts, order = index.reshape(-1).sort(stable=True)
    counts = torch.bincount(experts, minlength=module.num_experts).tolist()
    places = order // chosen  # the token of each pair of a token and an expert, sorted by the experts
    pairs = zip(torch.split(hidden[places], counts), torch.split(places * rows // tokens, counts), strict=True)
    parts = [_compute_one(module, factors, expert, *pair) for expert, pair in enumerate(pairs) if len(pair[0])]
    out = torch.cat(parts) * weights.reshape(-1)[order][:, None]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return out[back].view(tokens, chosen, -1).sum(dim=1).to(hidden.dtype)


def _compute_one(
    module: Any, factors: Mapping[str, StackFactors], expert: int, inputs: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    def project(name: str, values: torch.Tensor) -> torch.Tensor:
        matrix = getattr(module, name)[expert]
        bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
        out = functional.linear(values, matrix.T if module.is_transposed else matrix, bias)
        return out if name not in factors else (out + factors[name].delta(expert, values, rows)).to(out.dtype)

    activate: Callable[[torch.Tensor], torch.Tensor] = module._apply_gate if module.has_gate else module.act_fn
    out = project("down_proj", activate(project("gate_up_proj" if module.has_gate else "up_proj", inputs)))
    return module.post_expert_norm(out) if getattr(module, "has_post_expert_norm", False) else out
