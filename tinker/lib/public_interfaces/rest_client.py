"""A path that older code imports from."""

from tinker.errors import ExperimentalWarning
from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture
from tinker.rest_client import RestClient

__all__ = ["APIFuture", "AwaitableConcurrentFuture", "ExperimentalWarning", "RestClient"]
