"""A path that older code imports from."""

from tinker.service_client import ServiceClient

__all__ = ["ServiceClient"]
