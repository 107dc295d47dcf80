"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import AdamOptimizerConfig, CreateModelRequest, LoraConfig, OptimizerConfig

__all__ = ["AdamOptimizerConfig", "CreateModelRequest", "LoraConfig", "OptimizerConfig"]
