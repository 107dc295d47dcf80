"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import RequestErrorCategory

__all__ = ["RequestErrorCategory"]
