"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._http.retry import RetryConfig
from tinker._older import is_retryable_status_code

__all__ = ["RetryConfig", "is_retryable_status_code"]
