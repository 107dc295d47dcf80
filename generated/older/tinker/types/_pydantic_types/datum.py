"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import Datum, LossFnInputs, ModelInput, TensorData

__all__ = ["Datum", "LossFnInputs", "ModelInput", "TensorData"]
