"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import GetInfoResponse, ModelData

__all__ = ["GetInfoResponse", "ModelData"]
