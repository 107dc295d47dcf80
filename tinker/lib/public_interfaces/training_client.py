"""A path that older code imports from."""

from tinker.custom_loss import CustomLossFn
from tinker.custom_loss import LossHandle as LossHandle
from tinker.lib.chunked_fwdbwd_helpers import (
    combine_fwd_bwd_output_results as combine_fwd_bwd_output_results,
)
from tinker.lib.public_interfaces.api_future import APIFuture as APIFuture
from tinker.lib.public_interfaces.api_future import (
    AwaitableConcurrentFuture as AwaitableConcurrentFuture,
)
from tinker.lib.retry_handler import RetryConfig as RetryConfig
from tinker.sampling_client import SamplingClient
from tinker.training_client import TrainingClient as TrainingClient

BackcompatSamplingClientFuture = SamplingClient
CustomLossFnV1 = CustomLossFn
