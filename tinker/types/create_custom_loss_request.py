"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import CreateCustomLossRequest, CustomLossGraph, CustomLossInput

__all__ = ["CreateCustomLossRequest", "CustomLossGraph", "CustomLossInput"]
