"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import CustomLossGraph, CustomLossNode, CustomLossNodeOp

__all__ = ["CustomLossGraph", "CustomLossNode", "CustomLossNodeOp"]
