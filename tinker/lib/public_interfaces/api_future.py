"""A path that older code imports from."""

from tinker.futures import APIFuture, AwaitableConcurrentFuture

__all__ = ["APIFuture", "AwaitableConcurrentFuture"]
