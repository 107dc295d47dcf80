"""A path that older code imports from."""

from tinker.types.results import TopkLogprobs

__all__ = ["TopkLogprobs"]
