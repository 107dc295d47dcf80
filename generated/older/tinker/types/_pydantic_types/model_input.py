"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import EncodedTextChunk, ModelInput, ModelInputChunk

__all__ = ["EncodedTextChunk", "ModelInput", "ModelInputChunk"]
