"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import SessionSearchCursor, SessionSearchResponse, SessionSummary

__all__ = ["SessionSearchCursor", "SessionSearchResponse", "SessionSummary"]
