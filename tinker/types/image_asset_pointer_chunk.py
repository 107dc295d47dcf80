"""A path that older code imports from."""

from tinker.types.model_input import ImageAssetPointerChunk

__all__ = ["ImageAssetPointerChunk"]
