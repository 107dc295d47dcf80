"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import ModelID, UnloadModelRequest

__all__ = ["ModelID", "UnloadModelRequest"]
