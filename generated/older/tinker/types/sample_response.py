"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import PromptAltTokens, SampledSequence, SampleResponse, TensorData, TopkLogprobs

__all__ = ["PromptAltTokens", "SampleResponse", "SampledSequence", "TensorData", "TopkLogprobs"]
