"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import DmelChunk, EncodedTextChunk, ImageAssetPointerChunk, ImageChunk, ModelInputChunk

__all__ = ["DmelChunk", "EncodedTextChunk", "ImageAssetPointerChunk", "ImageChunk", "ModelInputChunk"]
