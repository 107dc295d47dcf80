"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import SampledSequence, StopReason, TopkLogprobs

__all__ = ["SampledSequence", "StopReason", "TopkLogprobs"]
