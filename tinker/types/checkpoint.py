"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import Checkpoint, CheckpointType, ParsedCheckpointTinkerPath

__all__ = ["Checkpoint", "CheckpointType", "ParsedCheckpointTinkerPath"]
