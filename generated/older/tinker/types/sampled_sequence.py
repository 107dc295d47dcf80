"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import SampledSequence, StopReason, TopkLogprobs

__all__ = ["SampledSequence", "StopReason", "TopkLogprobs"]
