"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import OwnSearchOwner, SearchOwner, SessionSearchCursor, SessionSearchRequest, SessionStatusQuery

__all__ = ["OwnSearchOwner", "SearchOwner", "SessionSearchCursor", "SessionSearchRequest", "SessionStatusQuery"]
