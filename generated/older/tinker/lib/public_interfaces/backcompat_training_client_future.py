"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.futures import APIFuture
from tinker.sampling_client import SamplingClient as BackcompatSamplingClientFuture, SamplingClient
from tinker.training_client import TrainingClient as BackcompatTrainingClientFuture, TrainingClient

__all__ = [
    "APIFuture",
    "BackcompatSamplingClientFuture",
    "BackcompatTrainingClientFuture",
    "SamplingClient",
    "TrainingClient",
]
