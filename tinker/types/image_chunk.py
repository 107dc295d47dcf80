"""The module path older code imports ImageChunk from."""

from tinker.types.model_input import ImageChunk

__all__ = ["ImageChunk"]
