"""A path that older code imports from."""

from tinker.lib.public_interfaces.api_future import APIFuture
from tinker.sampling_client import SamplingClient

BackcompatSamplingClientFuture = SamplingClient

__all__ = ["APIFuture", "BackcompatSamplingClientFuture", "SamplingClient"]
