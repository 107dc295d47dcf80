"""A path that older code imports from."""

from tinker.types.model_input import DmelChunk

__all__ = ["DmelChunk"]
