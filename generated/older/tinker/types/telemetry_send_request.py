"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import TelemetryEvent, TelemetrySendRequest

__all__ = ["TelemetryEvent", "TelemetrySendRequest"]
