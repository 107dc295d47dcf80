"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import ModelID, RequestID, UntypedAPIFuture

__all__ = ["ModelID", "RequestID", "UntypedAPIFuture"]
