"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.futures import APIFuture
from tinker.sampling_client import SamplingClient as BackcompatSamplingClientFuture, SamplingClient

__all__ = ["APIFuture", "BackcompatSamplingClientFuture", "SamplingClient"]
