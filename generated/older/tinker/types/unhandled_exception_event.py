"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import EventType, Severity, UnhandledExceptionEvent

__all__ = ["EventType", "Severity", "UnhandledExceptionEvent"]
