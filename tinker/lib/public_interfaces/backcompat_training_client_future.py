"""A path that older code imports from."""

from tinker.lib.public_interfaces.api_future import APIFuture
from tinker.sampling_client import SamplingClient
from tinker.training_client import TrainingClient

BackcompatSamplingClientFuture = SamplingClient
BackcompatTrainingClientFuture = TrainingClient

__all__ = [
    "APIFuture",
    "BackcompatSamplingClientFuture",
    "BackcompatTrainingClientFuture",
    "SamplingClient",
    "TrainingClient",
]
