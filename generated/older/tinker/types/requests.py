"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    ForwardBackwardInput,
    ForwardBackwardRequest,
    ForwardRequest,
    GetBillingUsageRequest,
    GetCurrentCheckpointStorageUsageRequest,
    OptimStepRequest,
    SampleRequest,
)
from tinker.types.params import instant

__all__ = [
    "ForwardBackwardInput",
    "ForwardBackwardRequest",
    "ForwardRequest",
    "GetBillingUsageRequest",
    "GetCurrentCheckpointStorageUsageRequest",
    "OptimStepRequest",
    "SampleRequest",
    "instant",
]
