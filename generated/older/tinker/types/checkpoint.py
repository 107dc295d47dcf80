"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import Checkpoint, CheckpointType, ParsedCheckpointTinkerPath

__all__ = ["Checkpoint", "CheckpointType", "ParsedCheckpointTinkerPath"]
