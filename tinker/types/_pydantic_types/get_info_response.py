"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import AdamOptimizerConfig, GetInfoResponse, ModelData, ModelID, OptimizerConfig

__all__ = ["AdamOptimizerConfig", "GetInfoResponse", "ModelData", "ModelID", "OptimizerConfig"]
