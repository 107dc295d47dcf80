"""The handler of telemetry: what clients report about themselves, and the metrics that they compute
for a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.state import SharedData, State

METRICS = "metrics"  # the events that are drawn
_MOST = 2**53  # above it, an integer is not the same as a float


async def telemetry(state: State, call: APICall) -> models.TelemetryResponse:
    """Keep the newest events, and add those called ``metrics`` to the curves of the run that they
    name.
    """
    request = call.read(models.TelemetrySendRequest)
    with state.lock() as shared:
        shared.telemetry.extend(request.events)
        for event in request.events:
            if isinstance(event, models.GenericEvent) and event.event_name == METRICS:
                _add_metrics(shared, event.event_data, state.now())
    return models.TelemetryResponse(status="accepted")


def _add_metrics(shared: SharedData, data: Mapping[str, object], at: float) -> None:
    """Add the numbers of an event to its run; events about an unknown run, or without a step, are
    only kept.
    """
    model, step = shared.store.find_model(str(data.get("training_run_id"))), data.get("step")
    if model is not None and _is_integer(step):
        found = {name: value for name, value in data.items() if name != "step"}
        numbers = {
            name: float(value)
            for name, value in found.items()
            if isinstance(value, float) or _is_integer(value)
        }
        model.history.add_report(step, numbers, at)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST <= value <= _MOST
