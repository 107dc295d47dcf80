"""Bytes: sizes, pieces and memory of bodies, their compression, and server-sent events."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TypeAlias

import msgspec
from tinker_wire.runtime import FormPieces

from tinker.types.model_input import Datum, DmelChunk, EncodedTextChunk, ImageChunk, ModelInput
from tinker.types.tensor_data import wire_nbytes

CONTENT_ENCODING = "zstd"


class BodyTooLargeError(ValueError):
    """A body holds more bytes than are taken; ``max_nbytes`` says how many those are."""

    def __init__(self, max_nbytes: int) -> None:
        super().__init__(f"the body is larger than {max_nbytes} bytes")
        self.max_nbytes = max_nbytes


@lru_cache(maxsize=1)
def available() -> bool:
    """Return whether this installation can compress."""
    return find_spec("zstandard") is not None


def compress(blocks: Sequence[bytes | memoryview]) -> bytes:
    """Return the blocks as one frame that names its content size."""
    import zstandard

    compressor = zstandard.ZstdCompressor().compressobj(size=sum(map(len, blocks)))
    return b"".join([*(compressor.compress(block) for block in blocks), compressor.flush()])


def decompress(body: bytes, max_nbytes: int) -> bytes:
    """Return the bytes of one or more frames; no more than ``max_nbytes`` are ever unpacked.

    Raises BodyTooLargeError beyond these, ValueError for what is not zstd, ImportError without the
    package.
    """
    import zstandard

    try:
        plain = (
            zstandard.ZstdDecompressor()
            .stream_reader(body, read_across_frames=True)
            .read(max_nbytes + 1)
        )
    except zstandard.ZstdError as error:
        raise ValueError(f"the body is not zstd: {error}") from error
    if len(plain) > max_nbytes:
        raise BodyTooLargeError(max_nbytes)
    return plain


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


def as_pieces(
    pieces: Sequence[bytes | bytearray | memoryview],
) -> tuple[Sequence[Piece], int]:
    """Return the pieces of a body as they are where they are large, else a copy in few, for each
    costs a system call; and the length of all.

    A large form stays what reads its files piece by piece, as they are sent.
    """
    nbytes = count_nbytes(pieces)
    if nbytes <= INLINE_NBYTES:
        return (b"".join(pieces),), nbytes
    if isinstance(pieces, FormPieces):
        return pieces, nbytes
    if nbytes < len(pieces) * INLINE_NBYTES:
        return slices(memoryview(b"".join(pieces))), nbytes
    return [
        one if isinstance(one, (bytes, memoryview)) else memoryview(one) for one in pieces
    ], nbytes


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
    tensors = sum(map(wire_nbytes, datum.loss_fn_inputs.values()))
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


EVENT_STREAM = "text/event-stream"
#: An event longer than this is not one.
MAX_EVENT_CHARACTERS = 16 << 20


class ServerEvent(msgspec.Struct, frozen=True):
    """One event. ``event_id`` is the last id that was given, here or before; ``retry_ms`` is what
    this event asks for.
    """

    data: str
    event: str = "message"
    event_id: str = ""
    retry_ms: int | None = None


class EventDecoder:
    """Takes the pieces of a stream and gives the events that they complete. What the end cuts off
    is no event.
    """

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_start = True
        self._line = ""
        self._after_return = False
        self._data: list[str] = []
        self._nbytes = 0
        self._event = ""
        self._event_id = ""
        self._retry_ms: int | None = None

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Yield the events that end in this piece. ValueError for one that is too long."""
        text = self._text.decode(piece)
        if self._is_start and text:
            self._is_start = False
            text = text.removeprefix("\ufeff")
        for line in self._lines(text):
            if (event := self._take(line)) is not None:
                yield event
        if self._nbytes + len(self._line) > MAX_EVENT_CHARACTERS:
            raise ValueError(f"an event is longer than {MAX_EVENT_CHARACTERS} characters")

    def _lines(self, text: str) -> Iterator[str]:
        """Yield the lines that are complete: a line ends with CR LF, LF or CR, and the LF may come
        in the next piece.
        """
        if self._after_return and text:
            self._after_return = False
            text = text.removeprefix("\n")
        if "\r" in text:
            self._after_return = text.endswith("\r")
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        first, *others = text.split("\n")
        self._line += first
        for following in others:
            line, self._line = self._line, following
            yield line

    def _take(self, line: str) -> ServerEvent | None:
        """Take a line; the event that it ends."""
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._nbytes += len(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._event_id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) < 16:
            self._retry_ms = int(value)
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, event, retry_ms = self._data, self._event, self._retry_ms
        self._data, self._nbytes, self._event, self._retry_ms = [], 0, "", None
        return (
            ServerEvent("\n".join(data), event or "message", self._event_id, retry_ms)
            if data
            else None
        )
