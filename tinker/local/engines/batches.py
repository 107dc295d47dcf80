"""Batches of rows of different lengths, with little padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

REAL_SHARE = 0.8  # of the cells of a batch, at least; the rest is padding
FREE_PADDING = 64  # cells of padding that cost less than one more pass over the weights


def is_alike(lengths: Sequence[int], free: int = FREE_PADDING) -> bool:
    """Return whether rows of these lengths, padded to the longest, need little padding."""
    real, padded = sum(lengths), len(lengths) * max(lengths)
    return real >= REAL_SHARE * padded or padded - real <= free


def split_batches(lengths: Sequence[int], cells: int) -> Iterator[list[int]]:
    """Yield batches of indices, the shortest rows first, with little padding and at most ``cells``, or with one row."""

    def fits(batch: list[int]) -> bool:
        chosen = [lengths[index] for index in batch]
        return len(chosen) * max(chosen) <= cells and is_alike(chosen)

    return split_where(sorted(range(len(lengths)), key=lengths.__getitem__), fits)


def split_where(order: list[int], fits: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Yield consecutive batches that fit; an item that does not fit alone goes alone."""
    batch: list[int] = []
    for index in order:
        if batch and not fits([*batch, index]):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
