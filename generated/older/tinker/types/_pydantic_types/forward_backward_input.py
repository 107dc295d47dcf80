"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import Datum, ForwardBackwardInput, LossFnType

__all__ = ["Datum", "ForwardBackwardInput", "LossFnType"]
