"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._http import RetryableException

__all__ = ["RetryableException"]
