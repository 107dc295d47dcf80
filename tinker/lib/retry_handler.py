"""A path that older code imports from."""

from __future__ import annotations

from tinker._http import RetryConfig, statuses

__all__ = ["RetryConfig", "is_retryable_status_code"]


def is_retryable_status_code(status_code: int) -> bool:
    """Return whether this client sends a request again that was answered with the status.

    >>> is_retryable_status_code(503), is_retryable_status_code(404)
    (True, False)
    """
    return statuses.is_retryable_status(status_code)
