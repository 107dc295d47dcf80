"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import CreateSessionRequest

__all__ = ["CreateSessionRequest"]
