"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._older import TelemetryProvider

__all__ = ["TelemetryProvider"]
