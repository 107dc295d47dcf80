"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import AdamParams, ModelID, OptimParams, OptimStepRequest

__all__ = ["AdamParams", "ModelID", "OptimParams", "OptimStepRequest"]
