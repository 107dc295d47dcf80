"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    ClientSessionFinished,
    ClientSessionFinishErrored,
    ClientSessionFinishInterrupted,
    ClientSessionFinishReason,
    ClientSessionFinishSuccess,
    SessionActive,
    SessionCancelled,
    SessionFailed,
    SessionFailedReason,
    SessionFailedRequestReason,
    SessionFailedSamplingSessionReason,
    SessionFailedTrainingRunReason,
    SessionStatus,
)

__all__ = [
    "ClientSessionFinishErrored",
    "ClientSessionFinishInterrupted",
    "ClientSessionFinishReason",
    "ClientSessionFinishSuccess",
    "ClientSessionFinished",
    "SessionActive",
    "SessionCancelled",
    "SessionFailed",
    "SessionFailedReason",
    "SessionFailedRequestReason",
    "SessionFailedSamplingSessionReason",
    "SessionFailedTrainingRunReason",
    "SessionStatus",
]
