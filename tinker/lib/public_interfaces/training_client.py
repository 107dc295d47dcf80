"""A path that older code imports from."""

from tinker.custom_loss import CustomLossFn as CustomLossFnV1
from tinker.custom_loss import LossHandle
from tinker.lib.chunked_fwdbwd_helpers import combine_fwd_bwd_output_results
from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture
from tinker.lib.retry_handler import RetryConfig
from tinker.sampling_client import SamplingClient
from tinker.training_client import TrainingClient

BackcompatSamplingClientFuture = SamplingClient

__all__ = [
    "APIFuture",
    "AwaitableConcurrentFuture",
    "BackcompatSamplingClientFuture",
    "CustomLossFnV1",
    "LossHandle",
    "RetryConfig",
    "SamplingClient",
    "TrainingClient",
    "combine_fwd_bwd_output_results",
]
