"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import CustomLossInput, CustomLossInputRank

__all__ = ["CustomLossInput", "CustomLossInputRank"]
