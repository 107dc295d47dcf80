"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._older import AwaitableConcurrentFuture
from tinker.admin_client import AdminClient
from tinker.custom_loss import LossHandle, PerDatumLossFn
from tinker.futures import APIFuture
from tinker.rest_client import RestClient
from tinker.sampling_client import SamplingClient as BackcompatSamplingClientFuture, SamplingClient
from tinker.service_client import ServiceClient
from tinker.training_client import TrainingClient as BackcompatTrainingClientFuture, TrainingClient

__all__ = [
    "APIFuture",
    "AdminClient",
    "AwaitableConcurrentFuture",
    "BackcompatSamplingClientFuture",
    "BackcompatTrainingClientFuture",
    "LossHandle",
    "PerDatumLossFn",
    "RestClient",
    "SamplingClient",
    "ServiceClient",
    "TrainingClient",
]
