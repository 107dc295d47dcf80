"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import CheckpointArchiveUrlResponse

__all__ = ["CheckpointArchiveUrlResponse"]
