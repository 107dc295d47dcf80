"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import SessionSearchCursor, SessionSearchResponse, SessionSummary

__all__ = ["SessionSearchCursor", "SessionSearchResponse", "SessionSummary"]
