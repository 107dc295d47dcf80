"""A path that older code imports from."""

from tinker.custom_loss import LossHandle, PerDatumLossFn

__all__ = ["LossHandle", "PerDatumLossFn"]
