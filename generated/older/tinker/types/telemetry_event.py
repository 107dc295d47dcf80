"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import (
    GenericEvent,
    SessionEndEvent,
    SessionStartEvent,
    TelemetryEvent,
    UnhandledExceptionEvent,
)

__all__ = [
    "GenericEvent",
    "SessionEndEvent",
    "SessionStartEvent",
    "TelemetryEvent",
    "UnhandledExceptionEvent",
]
