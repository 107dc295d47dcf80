"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import AdamOptimizerConfig, GetInfoResponse, ModelData, ModelID, OptimizerConfig

__all__ = ["AdamOptimizerConfig", "GetInfoResponse", "ModelData", "ModelID", "OptimizerConfig"]
