"""A path that older code imports from."""

from tinker.errors import ExperimentalWarning

__all__ = ["ExperimentalWarning"]
