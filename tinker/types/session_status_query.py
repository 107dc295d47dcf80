"""A path that older code imports from; made by tools/older_paths.py."""

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
