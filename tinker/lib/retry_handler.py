"""A path that older code imports from."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from tinker._http import is_retryable_status
from tinker.errors import APIConnectionError
from tinker.lib.retryable_exception import RetryableException


@dataclass(unsafe_hash=True)
class RetryConfig:
    """How samples are retried: ``enable_retry_logic=False``, not at all; ``progress_timeout``, for so many seconds at most.

    ``enable_stuck_detection=False`` makes the latter the client's own. The other fields have no effect; delays, limits and what
    is retried are the client's.
    """

    max_connections: int = 1000
    progress_timeout: float = 7200
    retry_delay_base: float = 0.5
    retry_delay_max: float = 10.0
    jitter_factor: float = 0.25
    enable_retry_logic: bool = True
    enable_stuck_detection: bool = True
    retryable_exceptions: tuple[type[Exception], ...] = (
        TimeoutError,
        APIConnectionError,
        httpx.TimeoutException,
        RetryableException,
    )

    def __post_init__(self) -> None:
        if self.max_connections <= 0:
            raise ValueError(f"max_connections must be positive, got {self.max_connections}")


def is_retryable_status_code(status_code: int) -> bool:
    """Return whether this client sends a request again that was answered with the status.

    >>> is_retryable_status_code(503), is_retryable_status_code(404)
    (True, False)
    """
    return is_retryable_status(status_code)
