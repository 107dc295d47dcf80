"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import ForwardBackwardInput, ForwardBackwardRequest, ModelID

__all__ = ["ForwardBackwardInput", "ForwardBackwardRequest", "ModelID"]
