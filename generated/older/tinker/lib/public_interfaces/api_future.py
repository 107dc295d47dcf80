"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._older import AwaitableConcurrentFuture
from tinker.futures import APIFuture

__all__ = ["APIFuture", "AwaitableConcurrentFuture"]
