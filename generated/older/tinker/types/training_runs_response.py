"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import Cursor, TrainingRun, TrainingRunsResponse

__all__ = ["Cursor", "TrainingRun", "TrainingRunsResponse"]
