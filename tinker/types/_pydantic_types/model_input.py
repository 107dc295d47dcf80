"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import EncodedTextChunk, ModelInput, ModelInputChunk

__all__ = ["EncodedTextChunk", "ModelInput", "ModelInputChunk"]
