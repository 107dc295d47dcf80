"""A path that older code imports from."""

from tinker._tokenizers import get_tokenizer as _load_tokenizer_from_model_info  # noqa: F401  (scripts use it all the same)
from tinker.lib.api_future_impl import QueueState, QueueStateObserver
from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture
from tinker.lib.retry_handler import RetryConfig
from tinker.sampling_client import SamplingClient

__all__ = ["APIFuture", "AwaitableConcurrentFuture", "QueueState", "QueueStateObserver", "RetryConfig", "SamplingClient"]
