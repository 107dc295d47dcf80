"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._http.retry import RetryableException

__all__ = ["RetryableException"]
