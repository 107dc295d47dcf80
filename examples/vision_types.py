"""Prompts with pictures: what a chunk of each kind is, how long it counts, and where it goes. Nothing is sent: the packaged
model reads text only.

python examples/vision_types.py
"""

from __future__ import annotations

import struct
import zlib

from tinker import types


def draw_png(width: int, height: int) -> bytes:
    """Return a red picture, as a stand-in for a file of yours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\x00" + b"\xff\x00\x00" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def main() -> None:
    picture = types.ImageChunk(data=draw_png(32, 32), format="png", expected_tokens=16)
    stored = types.ImageAssetPointerChunk(location="s3://bucket/cat.jpg", format="jpeg", expected_tokens=256)
    question = types.EncodedTextChunk(tokens=[101, 2054, 2003, 2023])

    prompt = types.ModelInput(chunks=[picture, question])
    for chunk in prompt.chunks:
        print(f"{type(chunk).__name__:16} counts as {chunk.length} tokens")
    print(f"the prompt counts as {prompt.length}")

    # Prompts are values: a longer one is a new one, and each can be plain data.
    both = prompt.append(stored)
    print(f"with the stored picture {both.length}; the first is still {prompt.length}")
    again = types.ModelInput.model_validate_json(both.model_dump_json())
    print("read back from JSON:", [type(chunk).__name__ for chunk in again.chunks])

    # How many tokens a picture becomes, the server's model decides; without a number here nobody knows the length.
    unknown = types.ModelInput(chunks=[types.ImageChunk(data=draw_png(8, 8), format="png"), question])
    try:
        length = str(unknown.length)
    except ValueError as error:
        length = f"unknown: {error}"
    print("without expected_tokens:", length)
    assert (prompt.length, both.length) == (20, 276)
    assert again == both


if __name__ == "__main__":
    main()
