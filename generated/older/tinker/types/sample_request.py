"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import ModelInput, SampleRequest, SamplingParams

__all__ = ["ModelInput", "SampleRequest", "SamplingParams"]
