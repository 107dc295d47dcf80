"""Rows of a key-value cache of transformers: choose, join, and cut them, whatever kinds of layers the model has.

Rows end at the same column: shorter ones are padded on the left, and an attention mask says where. Layers of linear
attention and of convolutions hold one state for each row instead of columns.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

KeysAndValues: TypeAlias = list[tuple[torch.Tensor, torch.Tensor]]  # of each layer: ``[heads, tokens, size]``
_STATES = ("conv_states", "recurrent_states")
KINDS = frozenset(  # of layers whose rows can be chosen and joined here, by name: older versions of transformers lack some
    {
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
        "DummyLayer",
    }
)


def check_cache(cache: Any, model: str) -> None:
    """Raise ValueError, naming the model, where a layer keeps something that is unknown here."""
    if odd := sorted({type(layer).__name__ for layer in cache.layers} - KINDS):
        raise ValueError(f"{model} is not supported: it uses an unsupported type of cache ({', '.join(odd)})")


def has_columns(cache: Any) -> bool:
    """Return whether every layer holds one column for each token, so that columns can be cut off and kept."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)


def has_states(cache: Any) -> bool:
    """Return whether some layer is no attention over columns."""
    return any(hasattr(layer, _STATES[0]) for layer in cache.layers)


def select_rows(cache: Any, rows: torch.Tensor) -> None:
    """Keep these rows, in this order; one may come more than once."""
    for layer in cache.layers:
        _change(layer, lambda tensor: tensor.index_select(0, rows))


def join_rows(cache: Any, more: Any) -> None:
    """Add the rows of another cache of the same model behind those of this one."""
    for layer, other in zip(cache.layers, more.layers, strict=True):
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = max(layer.cumulative_length, other.cumulative_length)
        for name in ("keys", "values"):
            first, second = getattr(layer, name, None), getattr(other, name, None)
            if first is not None and second is not None:
                setattr(layer, name, stack_rows([first, second]))
        for states, others in zip(_states(layer), _states(other), strict=True):
            for index, state in states.items():
                more_state = others[index]
                states[index] = None if state is None or more_state is None else torch.cat([state, more_state])


def drop_columns(cache: Any, count: int) -> None:
    """Cut off the first columns. Only where every layer has columns."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, count:].contiguous(), layer.values[:, :, count:].contiguous()


def stack_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Put rows ``[rows, heads, columns, size]`` below one another, in one copy, with zeros before the shorter ones."""
    _, heads, _, size = parts[0].shape
    width = max(part.shape[2] for part in parts)
    stacked, first = parts[0].new_empty(sum(len(part) for part in parts), heads, width, size), 0
    for part in parts:
        rows, missing = stacked[first : first + len(part)], width - part.shape[2]
        rows[:, :, :missing], rows[:, :, missing:] = 0, part
        first += len(part)
    return stacked


def read_row(cache: Any, row: int, columns: torch.Tensor) -> KeysAndValues:
    """Copy these columns of one row."""
    return [(layer.keys[row][:, columns], layer.values[row][:, columns]) for layer in cache.layers]


def make_cache(config: Any, rows: Sequence[KeysAndValues]) -> Any:
    """Make a cache of these rows, padded on the left."""
    cache = DynamicCache(config=config)
    for index in range(len(rows[0])):
        keys, values = (stack_rows([row[index][part][None] for row in rows]) for part in (0, 1))
        cache.update(keys, values, index)
    return cache


def _states(layer: Any) -> list[dict[int, torch.Tensor | None]]:
    return [getattr(layer, name) for name in _STATES if hasattr(layer, name)]


def _change(layer: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for name in ("keys", "values"):
        tensor = getattr(layer, name, None)
        if tensor is not None and tensor.numel():
            setattr(layer, name, change(tensor))
    for states in _states(layer):
        for index, state in states.items():
            states[index] = None if state is None else change(state)
