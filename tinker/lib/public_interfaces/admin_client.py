"""A path that older code imports from."""

from tinker.admin_client import AdminClient
from tinker.lib.public_interfaces.api_future import APIFuture, AwaitableConcurrentFuture

__all__ = ["APIFuture", "AdminClient", "AwaitableConcurrentFuture"]
