"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import CreateSessionResponse

__all__ = ["CreateSessionResponse"]
