"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import LoadWeightsResponse

__all__ = ["LoadWeightsResponse"]
