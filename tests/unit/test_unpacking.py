"""Compressed responses: every requested encoding, damaged bodies, and decompression bombs."""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib

import pytest

from tinker._http import messages as _messages
from tinker._http.messages import ExchangeFailed, unpack

CONTENT = bytes(range(256)) * 5000


def raw_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(content) + packer.flush()


@pytest.mark.parametrize("content", [b"", b"x", CONTENT, bytes(3_000_000)])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP ", gzip.compress),
        ("x-gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        (
            "gzip",
            lambda content: (
                gzip.compress(content[:1000], mtime=0) + gzip.compress(content[1000:], mtime=0)
            ),
        ),
        ("gzip", lambda content: gzip.compress(content, mtime=0) + bytes(100)),
        ("identity", bytes),
        ("", bytes),
    ],
)
def test_every_packing(encoding: str, pack, content: bytes) -> None:  # type: ignore[no-untyped-def]
    """Compressed data is restored, in one part or several, however small or large."""
    assert asyncio.run(unpack(pack(content), encoding)) == content


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_an_answer_without_a_body(encoding: str) -> None:
    """An empty body is not decompressed, whatever the header states."""
    assert asyncio.run(unpack(b"", encoding)) == b""


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"not packed at all"),
        ("gzip", gzip.compress(CONTENT, mtime=0)[:-20]),
        ("gzip", gzip.compress(b"x", mtime=0)[:-1]),
        ("gzip", gzip.compress(CONTENT, mtime=0) + b"rubbish"),
        ("gzip", gzip.compress(CONTENT, mtime=0).replace(b"\x03", b"\xff", 1)[:-8] + bytes(8)),
        ("deflate", zlib.compress(CONTENT)[:-1]),
        ("br", b"x"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"x", mtime=0), mtime=0)),
    ],
)
def test_bodies_that_cannot_be_unpacked(encoding: str, body: bytes) -> None:
    """A damaged or truncated body, or one in another encoding, is a ValueError."""
    with pytest.raises(ValueError, match=r"compressed|Content-Encoding"):
        asyncio.run(unpack(body, encoding))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Return the steps of unpacking: what is in memory after each, and whether on this thread."""
    found: list[tuple[int, bool]] = []
    step = _messages._Packed.step

    def watched(self: _messages._Packed, nbytes: int) -> None:
        step(self, nbytes)
        found.append((len(self.content), threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(_messages._Packed, "step", watched)
    return found


def test_a_bomb(monkeypatch: pytest.MonkeyPatch, steps: list[tuple[int, bool]]) -> None:
    """A body beyond the limit is refused before more than that is in memory."""
    monkeypatch.setattr(_messages, "MAX_UNPACKED_NBYTES", 4 << 20)
    with pytest.raises(ExchangeFailed, match="larger than 4,194,304 bytes"):
        asyncio.run(unpack(gzip.compress(bytes(64 << 20)), "gzip"))
    assert max(nbytes for nbytes, _ in steps) < 5 << 20


def test_large_bodies_are_unpacked_beside_the_loop(steps: list[tuple[int, bool]]) -> None:
    """Of a large body only the first step runs on the loop thread; a small one needs no other."""
    asyncio.run(unpack(gzip.compress(b"small", mtime=0), "gzip"))
    asyncio.run(unpack(gzip.compress(bytes(8 << 20)), "gzip"))
    small, first, *others = (is_here for _, is_here in steps)
    assert (small, first, any(others)) == (True, True, False)
    assert len(others) > 8
