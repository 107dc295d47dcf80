"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import ModelID, UnloadModelRequest

__all__ = ["ModelID", "UnloadModelRequest"]
