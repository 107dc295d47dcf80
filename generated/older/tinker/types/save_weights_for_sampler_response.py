"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import SaveWeightsForSamplerResponse, SaveWeightsForSamplerResponseInternal

__all__ = ["SaveWeightsForSamplerResponse", "SaveWeightsForSamplerResponseInternal"]
