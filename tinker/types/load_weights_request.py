"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import LoadWeightsRequest, ModelID, OptimizerConfig

__all__ = ["LoadWeightsRequest", "ModelID", "OptimizerConfig"]
