"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._older import capture_exceptions, TelemetryProvider
from tinker._session.telemetry import is_user_error, Telemetry

__all__ = ["Telemetry", "TelemetryProvider", "capture_exceptions", "is_user_error"]
