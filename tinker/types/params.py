"""What users choose: optimizer, sampling and LoRA parameters. The wire records themselves, with the field's names."""

from __future__ import annotations

from typing import TypeAlias

from tinker_wire.models import (
    AdamOptimizerConfig,
    AdamParams,
    DimuonOptimizerConfig,
    DimuonParams,
    LoraConfig,
    LossFnType,
    SamplingParams,
)

OptimParams: TypeAlias = AdamParams | DimuonParams
OptimizerConfig: TypeAlias = AdamOptimizerConfig | DimuonOptimizerConfig

__all__ = [
    "AdamOptimizerConfig",
    "AdamParams",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "LoraConfig",
    "LossFnType",
    "OptimParams",
    "OptimizerConfig",
    "SamplingParams",
]
