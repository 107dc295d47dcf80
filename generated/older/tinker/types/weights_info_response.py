"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import AdamOptimizerConfig, OptimizerConfig, WeightsInfoResponse

__all__ = ["AdamOptimizerConfig", "OptimizerConfig", "WeightsInfoResponse"]
