"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import LoadWeightsRequest, ModelID, OptimizerConfig

__all__ = ["LoadWeightsRequest", "ModelID", "OptimizerConfig"]
