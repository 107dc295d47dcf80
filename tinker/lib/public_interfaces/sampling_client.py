"""A path that older code imports from."""

from tinker.lib.api_future_impl import QueueState, QueueStateObserver
from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture
from tinker.lib.retry_handler import RetryConfig
from tinker.sampling_client import SamplingClient

__all__ = ["APIFuture", "AwaitableConcurrentFuture", "QueueState", "QueueStateObserver", "RetryConfig", "SamplingClient"]
