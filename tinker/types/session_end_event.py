"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import EventType, SessionEndEvent, Severity

__all__ = ["EventType", "SessionEndEvent", "Severity"]
