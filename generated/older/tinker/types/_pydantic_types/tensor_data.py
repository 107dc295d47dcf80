"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import TensorData, TensorDtype

__all__ = ["TensorData", "TensorDtype"]
