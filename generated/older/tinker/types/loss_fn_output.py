"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import LossFnOutput, TensorData

__all__ = ["LossFnOutput", "TensorData"]
