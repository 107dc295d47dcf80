"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import CreateCustomLossRequest, CustomLossGraph, CustomLossInput

__all__ = ["CreateCustomLossRequest", "CustomLossGraph", "CustomLossInput"]
