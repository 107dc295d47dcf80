"""Bodies of responses that were packed on the way: unpacked in steps, off the loop when large, and
never beyond a limit.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import TypeAlias

from tinker._http.messages import check_size

ACCEPTED_ENCODINGS = "gzip, deflate"
# The packed forms of a response of this size are no bigger in practice; a bomb unpacks to a
# thousand times its size.
MAX_UNPACKED_NBYTES = 256 << 20
# The bytes decompressed before the loop gets its turn.
_STEP_NBYTES = 1 << 18
_GZIP_BITS = zlib.MAX_WBITS | 16
_Unpacker: TypeAlias = "zlib._Decompress"  # pyright: ignore[reportPrivateUsage]


async def unpack(body: bytes, encoding: str, most: int = MAX_UNPACKED_NBYTES) -> bytes:
    """Return the content of a body with this Content-Encoding.

    Raises ValueError for one that is broken or unknown, ExchangeFailed for one of more than
    ``most`` bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity") or not body:
        return body
    if name not in _OPENERS:
        raise ValueError(
            f"the response has the Content-Encoding {name[:40]!r}, which the client did not accept"
        )
    packed = _Packed(body, _OPENERS[name](body), min(most, MAX_UNPACKED_NBYTES))
    packed.step(_STEP_NBYTES)
    if not packed.done:
        await asyncio.to_thread(packed.finish)
    return bytes(packed.content)


class _Packed:
    """One body on its way out of its packing."""

    def __init__(self, body: bytes, unpacker: _Unpacker, most: int) -> None:
        self._most = most
        self._rest = body
        self._unpacker = unpacker
        self.content = bytearray()
        self.done: bool = False

    def finish(self) -> None:
        """Unpack the rest."""
        while not self.done:
            self.step(_STEP_NBYTES)
            check_size(len(self.content), self._most)

    def step(self, nbytes: int) -> None:
        """Unpack so much, at most."""
        try:
            piece = self._unpacker.decompress(self._rest, nbytes)
        except zlib.error as error:
            raise ValueError(f"the response cannot be decompressed: {error}") from error
        self.content += piece
        self._rest = self._unpacker.unconsumed_tail
        if self._unpacker.eof:
            self._next_member()
        elif not piece and not self._rest:
            raise ValueError("the compressed response is incomplete")

    def _next_member(self) -> None:
        """Begin the next part: a gzip body may have several, one after the other."""
        self._rest = self._unpacker.unused_data
        self.done = not self._rest.strip(b"\0")
        self._unpacker = zlib.decompressobj(_GZIP_BITS)


def _gzip(_: bytes) -> _Unpacker:
    return zlib.decompressobj(_GZIP_BITS)


def _deflate(body: bytes) -> _Unpacker:
    """Unpack deflate; some servers leave out the zlib header, whose first byte is known."""
    return zlib.decompressobj(
        zlib.MAX_WBITS if body[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS
    )


_OPENERS: dict[str, Callable[[bytes], _Unpacker]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
}
