"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import AdamOptimizerConfig, CreateModelRequest, LoraConfig, OptimizerConfig

__all__ = ["AdamOptimizerConfig", "CreateModelRequest", "LoraConfig", "OptimizerConfig"]
