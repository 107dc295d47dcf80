"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import ModelInput, SampleRequest, SamplingParams

__all__ = ["ModelInput", "SampleRequest", "SamplingParams"]
