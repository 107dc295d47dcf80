"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import EventType, GenericEvent, Severity

__all__ = ["EventType", "GenericEvent", "Severity"]
