"""A path that older code imports from."""

from tinker.training_client import TrainingClient

__all__ = ["TrainingClient"]
