"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import FutureCompletion, FutureFailed, FutureFinished, RequestID

__all__ = ["FutureCompletion", "FutureFailed", "FutureFinished", "RequestID"]
