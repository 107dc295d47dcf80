"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.errors import ExperimentalWarning

__all__ = ["ExperimentalWarning"]
