"""A path that older code imports from."""

from tinker.admin_client import AdminClient

__all__ = ["AdminClient"]
