"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types.results import TopkLogprobs as TopkPromptLogprobs

__all__ = ["TopkPromptLogprobs"]
