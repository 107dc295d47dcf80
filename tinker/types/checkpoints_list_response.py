"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import Checkpoint, CheckpointsListResponse, Cursor

__all__ = ["Checkpoint", "CheckpointsListResponse", "Cursor"]
