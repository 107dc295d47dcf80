"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import SaveWeightsExternalResponse, SaveWeightsExternalResponseInternal

__all__ = ["SaveWeightsExternalResponse", "SaveWeightsExternalResponseInternal"]
