"""A path that older code imports from."""

from tinker.types.model_input import EncodedTextChunk

__all__ = ["EncodedTextChunk"]
