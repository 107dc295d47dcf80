"""list[Datum] -> chunks, each of which is one request. Order is kept."""

from __future__ import annotations

from collections.abc import Sequence

from tinker.types.datum import Datum
from tinker.types.model_input import DmelChunk, EncodedTextChunk, ImageChunk, ModelInputChunk
from tinker.types.tensor_data import wire_nbytes

# What a prompt token counts as in the sampling budgets: roughly its decimal digits and a comma.
PROMPT_TOKEN_NBYTES = 10
_TRAINING_TOKEN_NBYTES = 4


def chunk_nbytes(chunk: ModelInputChunk, token_nbytes: int) -> int:
    """Return estimated bytes of one chunk of model input."""
    if isinstance(chunk, EncodedTextChunk):
        return token_nbytes * chunk.length
    if isinstance(chunk, ImageChunk):
        return len(chunk.data)
    return len(chunk.dmel) if isinstance(chunk, DmelChunk) else len(chunk.location)


def datum_nbytes(datum: Datum) -> int:
    """Return estimated protobuf bytes of one datum."""
    text = sum(chunk_nbytes(chunk, _TRAINING_TOKEN_NBYTES) for chunk in datum.model_input.chunks)
    return text + sum(wire_nbytes(tensor) for tensor in datum.loss_fn_inputs.values())


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
