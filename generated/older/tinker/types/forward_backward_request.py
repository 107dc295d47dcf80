"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import ForwardBackwardInput, ForwardBackwardRequest, ModelID

__all__ = ["ForwardBackwardInput", "ForwardBackwardRequest", "ModelID"]
