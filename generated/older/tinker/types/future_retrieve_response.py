"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    CreateModelResponse,
    ForwardBackwardOutput,
    FutureRetrieveResponse,
    LoadWeightsResponse,
    OptimStepResponse,
    RequestFailedResponse,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
    TryAgainResponse,
    UnloadModelResponse,
)

__all__ = [
    "CreateModelResponse",
    "ForwardBackwardOutput",
    "FutureRetrieveResponse",
    "LoadWeightsResponse",
    "OptimStepResponse",
    "RequestFailedResponse",
    "SaveWeightsExternalResponse",
    "SaveWeightsForSamplerResponse",
    "SaveWeightsResponse",
    "TryAgainResponse",
    "UnloadModelResponse",
]
