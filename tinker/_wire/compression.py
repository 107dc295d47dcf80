"""zstd bodies, for servers that ask for them. Needs the extra ``zstd``; without it bodies go out as
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec

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


def compress(blocks: Sequence[bytes | memoryview]) -> tuple[bytes, ...]:
    """Return the blocks as one frame that names its content size."""
    import zstandard

    compressor = zstandard.ZstdCompressor().compressobj(size=sum(map(len, blocks)))
    return (b"".join([*(compressor.compress(block) for block in blocks), compressor.flush()]),)


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
