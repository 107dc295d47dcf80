"""A path that older code imports from."""

from tinker.custom_loss import CustomLossFn as CustomLossFnV1
from tinker.training_client import TrainingClient

__all__ = ["CustomLossFnV1", "TrainingClient"]
