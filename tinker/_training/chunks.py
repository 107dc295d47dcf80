"""list[Datum] -> chunks, each of which is one request. Order is kept."""

from __future__ import annotations

from collections.abc import Sequence

from tinker._wire import datum_nbytes
from tinker.types.datum import Datum


def split(data: Sequence[Datum], max_datums: int, max_nbytes: int) -> list[tuple[Sequence[Datum], int]]:
    """Return chunks of at most ``max_datums`` datums and ``max_nbytes`` estimated bytes, with their estimates.

    A datum larger than ``max_nbytes`` makes a chunk of its own.
    """
    chunks: list[tuple[Sequence[Datum], int]] = []
    start = nbytes = 0
    for index, datum in enumerate(data):
        size = datum_nbytes(datum)
        if index > start and (nbytes + size > max_nbytes or index - start >= max_datums):
            chunks.append((data[start:index], nbytes))
            start, nbytes = index, 0
        nbytes += size
    chunks.append((data[start:], nbytes))
    return chunks
