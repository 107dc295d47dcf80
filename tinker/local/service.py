"""Handlers of configuration, telemetry, and the life of sessions."""

from __future__ import annotations

from tinker_wire import models

from tinker.local.call import Call
from tinker.local.naming import one_for_all
from tinker.local.problem import Problem
from tinker.local.state import State
from tinker.local.store import End


async def healthz(state: State, call: Call) -> models.HealthResponse:
    """Always well while it answers."""
    return models.HealthResponse(status="ok")


async def client_config(state: State, call: Call) -> models.ClientConfigResponse:
    """The setting of that name."""
    call.read(models.ClientConfigRequest)
    return state.settings.client_config


async def client_dynamic_config(state: State, call: Call) -> models.ClientDynamicConfigResponse:
    """The setting of that name."""
    call.read(models.ClientConfigRequest)
    return state.settings.client_dynamic_config


async def create_session(state: State, call: Call) -> models.CreateSessionResponse:
    """Opens a session."""
    request = call.read(models.CreateSessionRequest)
    warning = one_for_all(await state.engine()) if state.settings.any_base_model else None
    with state.lock:
        session = state.store.create_session(request)
    return models.CreateSessionResponse(session_id=session.session_id, warning_message=warning)


async def session_heartbeat(state: State, call: Call) -> models.SessionHeartbeatResponse:
    """Notes that the session lives; 410 when it has ended."""
    request = call.read(models.SessionHeartbeatRequest)
    with state.lock:
        session = state.store.session(request.session_id)
        if session.end is not None:
            raise Problem(410, f"session {request.session_id!r} has ended")
        state.store.touch(session)
    return models.SessionHeartbeatResponse()


async def finish_session(state: State, call: Call) -> None:
    """Ends a session; ending it again changes nothing."""
    reason = call.read(models.FinishSessionRequest)
    with state.lock:
        session = state.store.session(call.path["session_id"])
        state.store.end_session(session, End(reason=reason.reason, detail=reason.detail))


async def get_server_capabilities(state: State, call: Call) -> models.GetServerCapabilitiesResponse:
    """The one loaded model."""
    engine = await state.engine()
    model = models.SupportedModel(
        model_name=engine.base_model, max_context_length=engine.max_context_length, trainable=True, sampleable=True
    )
    return models.GetServerCapabilitiesResponse(supported_models=[model])


async def telemetry(state: State, call: Call) -> models.TelemetryResponse:
    """Keeps the newest events."""
    request = call.read(models.TelemetrySendRequest)
    with state.lock:
        state.telemetry.extend(request.events)
    return models.TelemetryResponse(status="accepted")
