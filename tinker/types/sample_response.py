"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import PromptAltTokens, SampledSequence, SampleResponse, TensorData, TopkLogprobs

__all__ = ["PromptAltTokens", "SampleResponse", "SampledSequence", "TensorData", "TopkLogprobs"]
