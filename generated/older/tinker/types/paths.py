"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import CheckpointType, ModelID, ParsedCheckpointTinkerPath, RequestID
from tinker.types.params import SCHEME

__all__ = ["CheckpointType", "ModelID", "ParsedCheckpointTinkerPath", "RequestID", "SCHEME"]
