"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import FutureCompletion, FutureFailed, FutureFinished, RequestID

__all__ = ["FutureCompletion", "FutureFailed", "FutureFinished", "RequestID"]
