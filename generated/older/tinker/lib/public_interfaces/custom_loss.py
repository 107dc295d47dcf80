"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.custom_loss import LossHandle, PerDatumLossFn

__all__ = ["LossHandle", "PerDatumLossFn"]
