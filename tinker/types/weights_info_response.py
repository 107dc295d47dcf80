"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import AdamOptimizerConfig, OptimizerConfig, WeightsInfoResponse

__all__ = ["AdamOptimizerConfig", "OptimizerConfig", "WeightsInfoResponse"]
