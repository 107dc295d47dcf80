"""Divergences between the rows of log-probabilities, each row a distribution or a part of one."""

# pyright: reportUnknownMemberType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from tinker.custom_loss import Tensor

if TYPE_CHECKING:
    import torch

Divergence: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From log-probabilities, those of a reference, and which cells count: a value for each row."""

SMALLEST_PROBABILITY = 1e-10  # smaller ones add nothing
LARGEST_LOG_RATIO = 100.0


def spread(values: Tensor, kept: Tensor, cells: Tensor) -> torch.Tensor:
    """Add up the kept values of each row; rows in which no cell counts are left out."""
    return values.where(kept, values.new_zeros(())).sum(-1)[cells.any(-1)]


def divergence(logprobs: Tensor, others: Tensor, cells: Tensor) -> torch.Tensor:
    """Compute for each row KL(P | Q) = sum p (log p - log q)."""
    kept = cells & (logprobs.detach().exp() > SMALLEST_PROBABILITY)
    ours, theirs = (part.where(kept, part.new_zeros(())) for part in (logprobs, others))
    return spread(ours.exp() * (ours - theirs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO), kept, cells)


def reverse_divergence(logprobs: Tensor, others: Tensor, cells: Tensor) -> torch.Tensor:
    return divergence(others, logprobs, cells)


def symmetric_divergence(logprobs: Tensor, others: Tensor, cells: Tensor) -> torch.Tensor:
    return (divergence(logprobs, others, cells) + divergence(others, logprobs, cells)) / 2


def middle_divergence(logprobs: Tensor, others: Tensor, cells: Tensor) -> torch.Tensor:
    """Compute for each row the Jensen-Shannon divergence, by the distribution half-way between the two."""
    middle = ((logprobs.exp() + others.exp()) / 2).clamp(min=SMALLEST_PROBABILITY).log()
    return (divergence(logprobs, middle, cells) + divergence(others, middle, cells)) / 2


def compute_rows(
    function: Divergence, ours: Iterable[Tensor], theirs: Iterable[Tensor], cells: Iterable[Tensor]
) -> torch.Tensor:
    """Compute the rows of all datums; ValueError when there are none."""
    import torch

    rows = torch.cat([function(*one) for one in zip(ours, theirs, cells, strict=True)])
    if rows.numel() == 0:
        raise ValueError("no token counts in these datums")
    return rows


def summarize(rows: Tensor) -> dict[str, float]:
    found = rows.detach()
    return {"mean": float(found.mean()), "min": float(found.min()), "max": float(found.max())}
