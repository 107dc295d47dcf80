"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import Cursor, TrainingRun, TrainingRunsResponse

__all__ = ["Cursor", "TrainingRun", "TrainingRunsResponse"]
