"""A path that older code imports from."""

from tinker.rest_client import RestClient

__all__ = ["RestClient"]
