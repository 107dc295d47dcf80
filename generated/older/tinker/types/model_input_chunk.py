"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInputChunk,
)

__all__ = [
    "DmelChunk",
    "EncodedTextChunk",
    "ImageAssetPointerChunk",
    "ImageChunk",
    "ModelInputChunk",
]
