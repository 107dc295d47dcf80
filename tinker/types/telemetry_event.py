"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import GenericEvent, SessionEndEvent, SessionStartEvent, TelemetryEvent, UnhandledExceptionEvent

__all__ = ["GenericEvent", "SessionEndEvent", "SessionStartEvent", "TelemetryEvent", "UnhandledExceptionEvent"]
