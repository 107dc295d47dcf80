"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import ModelID, RequestID, UntypedAPIFuture

__all__ = ["ModelID", "RequestID", "UntypedAPIFuture"]
