"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import ForwardBackwardInput, ForwardRequest, ModelID

__all__ = ["ForwardBackwardInput", "ForwardRequest", "ModelID"]
