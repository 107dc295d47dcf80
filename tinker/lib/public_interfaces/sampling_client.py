"""A path that older code imports from."""

from tinker.sampling_client import SamplingClient

__all__ = ["SamplingClient"]
