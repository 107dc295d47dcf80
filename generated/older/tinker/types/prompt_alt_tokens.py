"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import PromptAltTokens, TensorData

__all__ = ["PromptAltTokens", "TensorData"]
