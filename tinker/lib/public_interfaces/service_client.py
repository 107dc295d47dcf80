"""A path that older code imports from."""

from tinker.custom_loss import LossHandle, PerDatumLossFn
from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture
from tinker.lib.retry_handler import RetryConfig
from tinker.service_client import ServiceClient

__all__ = [
    "APIFuture",
    "AwaitableConcurrentFuture",
    "LossHandle",
    "PerDatumLossFn",
    "RetryConfig",
    "ServiceClient",
]
