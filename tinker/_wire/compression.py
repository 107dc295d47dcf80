"""zstd bodies, for servers that ask for them. Needs the extra ``zstd``; without it bodies go out as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec

CONTENT_ENCODING = "zstd"


@lru_cache(maxsize=1)
def available() -> bool:
    """Return whether this installation can compress."""
    return find_spec("zstandard") is not None


def compress(blocks: Sequence[bytes | memoryview]) -> tuple[bytes, ...]:
    """Return the blocks as one frame that names its content size."""
    import zstandard

    compressor = zstandard.ZstdCompressor().compressobj(size=sum(map(len, blocks)))
    return (b"".join([*(compressor.compress(block) for block in blocks), compressor.flush()]),)
