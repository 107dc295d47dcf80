"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._older import AwaitableConcurrentFuture
from tinker.errors import ExperimentalWarning
from tinker.futures import APIFuture
from tinker.rest_client import RestClient

__all__ = ["APIFuture", "AwaitableConcurrentFuture", "ExperimentalWarning", "RestClient"]
