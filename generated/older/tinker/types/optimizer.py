"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    AdamOptimizerConfig,
    AdamParams,
    DimuonOptimizerConfig,
    DimuonParams,
    OptimizerConfig,
    OptimParams,
)

__all__ = [
    "AdamOptimizerConfig",
    "AdamParams",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "OptimParams",
    "OptimizerConfig",
]
