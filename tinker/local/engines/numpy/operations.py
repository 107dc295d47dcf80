"""The operations of a layer, each followed by its derivative: given the slope of the loss by the
result, that by the arguments.

``slope`` is always a derivative of the loss by an array, and has its shape.
"""

from __future__ import annotations

import math

import numpy as np

from tinker.local.engines.arrays import Reals


def norm(x: Reals, weight: Reals, epsilon: float) -> Reals:
    """Divide each state by its root mean square, and multiply by the weight (RMSNorm)."""
    normed: Reals = x * _inverse_size(x, epsilon) * weight
    return normed


def norm_slope(slope: Reals, x: Reals, weight: Reals, epsilon: float) -> Reals:
    size = _inverse_size(x, epsilon)
    unit, by_unit = x * size, slope * weight
    by_x: Reals = size * (by_unit - unit * (by_unit * unit).mean(axis=-1, keepdims=True))
    return by_x


def _inverse_size(x: Reals, epsilon: float) -> Reals:
    square: Reals = (x * x).mean(axis=-1, keepdims=True) + np.float32(epsilon)
    return 1 / np.sqrt(square)


def rotate(x: Reals, cos: Reals, sin: Reals) -> Reals:
    """Turn each pair of numbers, one from each half of a head, by the angle of its position. The
    derivative turns back.
    """
    first, second = np.split(x, 2, axis=-1)
    turned: Reals = x * cos + np.concatenate([-second, first], axis=-1) * sin
    return turned


def attend(queries: Reals, keys: Reals, values: Reals, mask: Reals) -> tuple[Reals, Reals]:
    """Mix the values by how well their keys fit each query.

    Args:
        queries: ``[rows, columns, heads, head_width]``.
        keys: ``[rows, all columns, groups, head_width]``, as the values; each group serves as many
            heads.
        mask: ``[rows, columns, all columns]``, 0 where a query sees a key, else minus infinity.

    Returns:
        The mixture for each query, and the shares
        ``[rows, groups, heads of a group, columns, all columns]`` of the values.
    """
    scores = _by_group(queries, keys.shape[2]) @ _by_group(keys).swapaxes(-1, -2)
    scores *= np.float32(1 / math.sqrt(queries.shape[-1]))
    scores += mask[:, None, None]
    scores -= scores.max(axis=-1, keepdims=True)
    shares = np.exp(scores, out=scores)
    shares /= shares.sum(axis=-1, keepdims=True)
    return _by_column(shares @ _by_group(values)), shares


def attend_slopes(
    slope: Reals, queries: Reals, keys: Reals, values: Reals, shares: Reals
) -> tuple[Reals, Reals, Reals]:
    """Return the slopes by queries, keys and values."""
    groups = keys.shape[2]
    slopes, scale = _by_group(slope, groups), np.float32(1 / math.sqrt(queries.shape[-1]))
    by_values = (shares.swapaxes(-1, -2) @ slopes).sum(axis=2, keepdims=True)
    by_scores = slopes @ _by_group(values).swapaxes(-1, -2)
    by_scores -= (by_scores * shares).sum(axis=-1, keepdims=True)
    by_scores *= shares
    by_scores *= scale
    by_queries = by_scores @ _by_group(keys)
    by_keys = (by_scores.swapaxes(-1, -2) @ _by_group(queries, groups)).sum(axis=2, keepdims=True)
    return _by_column(by_queries), _by_column(by_keys), _by_column(by_values)


def _by_group(x: Reals, groups: int = 0) -> Reals:
    """Return ``[rows, groups, heads of a group, columns, head_width]``; without ``groups`` one head
    in each.
    """
    rows, columns, heads, width = x.shape
    groups = groups or int(heads)
    return x.reshape(rows, columns, groups, heads // groups, width).transpose(0, 2, 3, 1, 4)


def _by_column(x: Reals) -> Reals:
    """Return ``[rows, columns, heads, head_width]``."""
    rows, groups, heads, columns, width = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(rows, columns, groups * heads, width)


def gate(opening: Reals, x: Reals) -> Reals:
    """Multiply by the SiLU of the opening: ``opening * sigmoid(opening) * x``."""
    return opening * _sigmoid(opening) * x


def gate_slopes(slope: Reals, opening: Reals, x: Reals) -> tuple[Reals, Reals]:
    """Return the slopes by the opening and by what goes through."""
    share = _sigmoid(opening)
    passed = opening * share
    return slope * x * (share + passed * (1 - share)), slope * passed


def _sigmoid(x: Reals) -> Reals:
    return 1 / (1 + np.exp(-x))
