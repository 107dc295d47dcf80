"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import CustomLossGraph, CustomLossNode, CustomLossNodeOp

__all__ = ["CustomLossGraph", "CustomLossNode", "CustomLossNodeOp"]
