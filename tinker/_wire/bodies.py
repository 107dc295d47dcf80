"""Bodies: their sizes, the pieces they are handed over in, and the memory of large ones, which is
used for later ones as well.

Fresh pages cost the system more than the copy into them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from tinker_wire.runtime import FormPieces

from tinker.types.datum import Datum
from tinker.types.model_input import DmelChunk, EncodedTextChunk, ImageChunk, ModelInput
from tinker.types.tensor_data import wire_nbytes

Piece: TypeAlias = bytes | memoryview

UPLOAD_PIECE = 1 << 20
# a body up to this size is handed over whole; it fits into the system's buffers
INLINE_NBYTES = 1 << 16
STEP_NBYTES = 1 << 20
KEPT_NBYTES = 32 << 20
# What a prompt token counts as in the sampling budgets: roughly its decimal digits and a comma.
_PROMPT_TOKEN_NBYTES = 10
_TRAINING_TOKEN_NBYTES = 4


def slices(whole: memoryview) -> list[Piece]:
    """Return a body in slices of a size that is good to hand over; no copy."""
    return [whole[at : at + UPLOAD_PIECE] for at in range(0, len(whole), UPLOAD_PIECE)]


def as_pieces(pieces: Sequence[bytes | bytearray | memoryview]) -> Sequence[Piece]:
    """Return the pieces of a body as they are where they are large, else a copy in few: each costs
    a system call.

    A large form stays what reads its files piece by piece, as they are sent.
    """
    nbytes = count_nbytes(pieces)
    if nbytes <= INLINE_NBYTES:
        return (b"".join(pieces),)
    if isinstance(pieces, FormPieces):
        return pieces
    if nbytes < len(pieces) * INLINE_NBYTES:
        return tuple(slices(memoryview(b"".join(pieces))))
    return tuple(
        piece if isinstance(piece, (bytes, memoryview)) else memoryview(piece) for piece in pieces
    )


def count_nbytes(pieces: Sequence[bytes | bytearray | memoryview]) -> int:
    """Return the length of a body; the files of a form are not read for that."""
    return pieces.nbytes if isinstance(pieces, FormPieces) else sum(map(len, pieces))


class Buffers:
    """Memory that nobody uses now, by size. Used from any thread; needs no lock, as it only appends
    and pops.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[bytearray]] = defaultdict(list)

    def join(self, pieces: Sequence[bytes | bytearray | memoryview]) -> memoryview:
        """Return a copy of the pieces, one after the other; :meth:`release` takes it back."""
        nbytes = sum(map(len, pieces))
        view = memoryview(self._take(-(-nbytes // STEP_NBYTES) * STEP_NBYTES))[:nbytes]
        at = 0
        for piece in pieces:
            end = at + len(piece)
            view[at:end] = piece
            at = end
        return view

    def release(self, view: memoryview) -> None:
        """Take back what :meth:`join` gave. Nobody may read it any more, a connection that still
        sends it least of all.
        """
        buffer = view.obj
        kept = sum(size * len(free) for size, free in list(self._free.items()))
        if isinstance(buffer, bytearray) and kept + len(buffer) <= KEPT_NBYTES:
            self._free[len(buffer)].append(buffer)

    def _take(self, nbytes: int) -> bytearray:
        try:
            return self._free[nbytes].pop()
        except IndexError:
            return bytearray(nbytes)


BUFFERS = Buffers()


def prompt_nbytes(prompt: ModelInput) -> int:
    """Estimate the bytes of a prompt as JSON, by which budgets are measured; nothing is encoded."""
    return _input_nbytes(prompt, _PROMPT_TOKEN_NBYTES)


def datum_nbytes(datum: Datum) -> int:
    """Estimate the bytes of one datum as protobuf, by which budgets and chunks are measured;
    nothing is encoded.
    """
    tensors = sum(wire_nbytes(tensor) for tensor in datum.loss_fn_inputs.values())
    return _input_nbytes(datum.model_input, _TRAINING_TOKEN_NBYTES) + tensors


def _input_nbytes(model_input: ModelInput, token_nbytes: int) -> int:
    total = 0
    for chunk in model_input.chunks:
        if isinstance(chunk, EncodedTextChunk):
            total += token_nbytes * chunk.length
        elif isinstance(chunk, ImageChunk):
            total += len(chunk.data)
        else:
            total += len(chunk.dmel) if isinstance(chunk, DmelChunk) else len(chunk.location)
    return total
