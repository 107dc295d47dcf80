"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import Checkpoint, CheckpointsListResponse, Cursor

__all__ = ["Checkpoint", "CheckpointsListResponse", "Cursor"]
