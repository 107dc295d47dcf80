"""The handler of telemetry."""

from __future__ import annotations

from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.state import State


async def telemetry(state: State, call: APICall) -> models.TelemetryResponse:
    """Keep the newest events."""
    request = call.read(models.TelemetrySendRequest)
    with state.lock() as shared:
        shared.telemetry.extend(request.events)
    return models.TelemetryResponse(status="accepted")
