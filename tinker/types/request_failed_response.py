"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import RequestErrorCategory, RequestFailedResponse

__all__ = ["RequestErrorCategory", "RequestFailedResponse"]
