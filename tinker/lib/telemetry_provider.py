"""A path that older code imports from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tinker._session import Telemetry


@runtime_checkable
class TelemetryProvider(Protocol):
    """A class with a reporter of failures, such as the clients."""

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter; None where telemetry is off."""
        ...


__all__ = ["TelemetryProvider"]
