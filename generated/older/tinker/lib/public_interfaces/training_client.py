"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._http.retry import RetryConfig
from tinker._older import AwaitableConcurrentFuture, combine_fwd_bwd_output_results
from tinker.custom_loss import CustomLossFn, CustomLossFn as CustomLossFnV1, LossHandle
from tinker.futures import APIFuture
from tinker.sampling_client import SamplingClient as BackcompatSamplingClientFuture, SamplingClient
from tinker.training_client import TrainingClient

__all__ = [
    "APIFuture",
    "AwaitableConcurrentFuture",
    "BackcompatSamplingClientFuture",
    "CustomLossFn",
    "CustomLossFnV1",
    "LossHandle",
    "RetryConfig",
    "SamplingClient",
    "TrainingClient",
    "combine_fwd_bwd_output_results",
]
