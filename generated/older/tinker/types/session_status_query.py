"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    ActiveSessionStatusQuery,
    CancelledSessionStatusQuery,
    ClientFinishedSessionStatusQuery,
    ClientSessionFinishReasonType,
    FailedSessionStatusQuery,
    SessionStatusQuery,
)

__all__ = [
    "ActiveSessionStatusQuery",
    "CancelledSessionStatusQuery",
    "ClientFinishedSessionStatusQuery",
    "ClientSessionFinishReasonType",
    "FailedSessionStatusQuery",
    "SessionStatusQuery",
]
