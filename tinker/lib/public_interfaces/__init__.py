"""The clients and futures under the path that older code imports them from."""

from tinker.admin_client import AdminClient
from tinker.custom_loss import LossHandle, PerDatumLossFn
from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture
from tinker.rest_client import RestClient
from tinker.sampling_client import SamplingClient
from tinker.service_client import ServiceClient
from tinker.training_client import TrainingClient

BackcompatTrainingClientFuture = TrainingClient
BackcompatSamplingClientFuture = SamplingClient

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
