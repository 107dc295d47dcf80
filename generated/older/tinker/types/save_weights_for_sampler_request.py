"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import ModelID, SamplingClientKind, SaveWeightsForSamplerRequest

__all__ = ["ModelID", "SamplingClientKind", "SaveWeightsForSamplerRequest"]
