"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._http.retry import RetryConfig
from tinker._older import AwaitableConcurrentFuture
from tinker.custom_loss import LossHandle, PerDatumLossFn
from tinker.futures import APIFuture
from tinker.service_client import ServiceClient

__all__ = [
    "APIFuture",
    "AwaitableConcurrentFuture",
    "LossHandle",
    "PerDatumLossFn",
    "RetryConfig",
    "ServiceClient",
]
