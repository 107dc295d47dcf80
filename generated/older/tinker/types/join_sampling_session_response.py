"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import JoinSamplingSessionResponse

__all__ = ["JoinSamplingSessionResponse"]
