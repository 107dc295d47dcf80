"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import FutureRetrieveRequest, RequestID

__all__ = ["FutureRetrieveRequest", "RequestID"]
