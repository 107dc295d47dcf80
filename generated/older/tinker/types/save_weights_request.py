"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import ModelID, SaveWeightsRequest

__all__ = ["ModelID", "SaveWeightsRequest"]
