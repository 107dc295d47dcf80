"""The optimizer "dimuon" as this server does it: momentum, and steps along the orthogonalised
momentum.

The hosted service documents the step (a direction of Frobenius norm sqrt(rank), from the matrix
sign of averaged gradients), not the formula, so that its numbers are its own. Here each LoRA matrix
``W`` of rank r, with its gradient ``G`` clipped by the global norm first, takes the step

    M <- beta1 M + (1 - beta1) G
    W <- W - learning_rate * sqrt(min(rows, columns)) * P / |P|,   P = newton_schulz(M)

where ``newton_schulz`` brings every singular value of M near 1 and keeps the singular vectors, so
that P is close to the nearest matrix with orthonormal rows (or columns). For a LoRA matrix
min(rows, columns) is r. There is no weight decay, and no bias correction: the size of M has no
effect. In a mixture of experts the matrices of each expert are steps of their own. For numpy arrays
and torch tensors alike, matrices ``[rows, columns]`` or stacks of them ``[..., rows, columns]``.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

M = TypeVar("M")
STEPS = 8
# The quintic of Muon: its slope at 0 makes small singular values grow fast, and it maps [0, 1.2]
# into about [0.7, 1.2].
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315


def newton_schulz(matrix: M) -> M:
    """Return each matrix with its singular values brought near 1; zero stays zero."""
    start: Any = matrix
    tall = start.shape[-2] > start.shape[-1]
    x = _scale_to_one(start.swapaxes(-1, -2) if tall else start)
    for _ in range(STEPS):
        gram = x @ x.swapaxes(-1, -2)
        x = LINEAR * x + (CUBIC * gram + QUINTIC * (gram @ gram)) @ x
    result: M = x.swapaxes(-1, -2) if tall else x
    return result


def orthogonal_direction(momentum: M) -> M:
    """Return the orthogonalised momentum; the Frobenius norm of each matrix is sqrt(min(rows,
    columns)).
    """
    p: Any = newton_schulz(momentum)
    result: M = _scale_to_one(p) * math.sqrt(min(p.shape[-2:]))
    return result


def _scale_to_one(matrices: Any) -> Any:
    """Return the matrices with a Frobenius norm of 1 each, or 0."""
    norms = (matrices * matrices).sum((-2, -1), keepdims=True) ** 0.5
    return matrices / (norms + (norms == 0))
