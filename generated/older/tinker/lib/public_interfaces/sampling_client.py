"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._http.retry import RetryConfig
from tinker._older import AwaitableConcurrentFuture, QueueState
from tinker._tokenizers import get_tokenizer as _load_tokenizer_from_model_info
from tinker.futures import APIFuture
from tinker.observing import QueueStateObserver
from tinker.sampling_client import SamplingClient

__all__ = [
    "APIFuture",
    "AwaitableConcurrentFuture",
    "QueueState",
    "QueueStateObserver",
    "RetryConfig",
    "SamplingClient",
]
