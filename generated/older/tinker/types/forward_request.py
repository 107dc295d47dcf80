"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import ForwardBackwardInput, ForwardRequest, ModelID

__all__ = ["ForwardBackwardInput", "ForwardRequest", "ModelID"]
