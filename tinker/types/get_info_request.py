"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import GetInfoRequest, ModelID

__all__ = ["GetInfoRequest", "ModelID"]
