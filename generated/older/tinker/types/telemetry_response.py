"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import TelemetryResponse

__all__ = ["TelemetryResponse"]
