"""A path that older code imports from."""

from tinker._http import RetryableException

__all__ = ["RetryableException"]
