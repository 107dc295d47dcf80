"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    ParsedCheckpointTinkerPath,
    SaveWeightsForSamplerResponse,
    SaveWeightsForSamplerResponseInternal,
)

__all__ = [
    "ParsedCheckpointTinkerPath",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsForSamplerResponseInternal",
]
