"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import Datum, LossFnInputs, ModelInput, TensorData

__all__ = ["Datum", "LossFnInputs", "ModelInput", "TensorData"]
