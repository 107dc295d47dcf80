"""A path that older code imports from."""

from tinker._tokenizers import get_tokenizer
from tinker.lib.api_future_impl import QueueState, QueueStateObserver
from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture
from tinker.lib.retry_handler import RetryConfig
from tinker.sampling_client import SamplingClient

_load_tokenizer_from_model_info = get_tokenizer  # which scripts import all the same

__all__ = [
    "APIFuture",
    "AwaitableConcurrentFuture",
    "QueueState",
    "QueueStateObserver",
    "RetryConfig",
    "SamplingClient",
]
