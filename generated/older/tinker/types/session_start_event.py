"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import EventType, SessionStartEvent, Severity

__all__ = ["EventType", "SessionStartEvent", "Severity"]
