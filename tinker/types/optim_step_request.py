"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import AdamParams, ModelID, OptimParams, OptimStepRequest

__all__ = ["AdamParams", "ModelID", "OptimParams", "OptimStepRequest"]
