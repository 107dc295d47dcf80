"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import Datum, ForwardBackwardInput, LossFnType

__all__ = ["Datum", "ForwardBackwardInput", "LossFnType"]
