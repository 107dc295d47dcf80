"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    OwnSearchOwner,
    SearchOwner,
    SessionSearchCursor,
    SessionSearchRequest,
    SessionStatusQuery,
)

__all__ = [
    "OwnSearchOwner",
    "SearchOwner",
    "SessionSearchCursor",
    "SessionSearchRequest",
    "SessionStatusQuery",
]
