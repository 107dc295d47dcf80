"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import EventType, Severity, UnhandledExceptionEvent

__all__ = ["EventType", "Severity", "UnhandledExceptionEvent"]
