"""Handlers of configuration and of sessions: begin, keep alive, end, list, describe, search, move
into a project, trace.
"""

from __future__ import annotations

from msgspec import structs
from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.errors import APIProblem, unprocessable
from tinker.local.handlers.training import LOSS_SETTINGS
from tinker.local.naming import other_names_warning
from tinker.local.operations.descriptions import summarize_session, to_string_map
from tinker.local.operations.submission import write_down
from tinker.local.state import State
from tinker.local.storage.access import OWNER
from tinker.local.storage.checkpoints import to_utc
from tinker.local.storage.sessions import SessionEnd, SessionRecord


async def healthz(state: State, call: APICall) -> models.HealthResponse:
    """Return that the server is running."""
    return models.HealthResponse(status="ok")


async def client_config(state: State, call: APICall) -> models.ClientConfigResponse:
    """Return the settings, and the losses of this server unless the settings have some."""
    call.read(models.ClientConfigRequest)
    config = state.settings.client_config
    return (
        config if config.loss_fns is not None else structs.replace(config, loss_fns=LOSS_SETTINGS)
    )


async def client_dynamic_config(state: State, call: APICall) -> models.ClientDynamicConfigResponse:
    """Return the setting of that name."""
    call.read(models.ClientConfigRequest)
    return state.settings.client_dynamic_config


async def create_session(state: State, call: APICall) -> models.CreateSessionResponse:
    """Open a session."""
    request = call.read(models.CreateSessionRequest)
    engines = await state.engines()
    warning = other_names_warning(engines) if state.settings.any_base_model else None
    with state.lock() as shared:
        session = shared.store.create_session(request)
        write_down(state, call, session.session_id, lambda: shared.store.discard(session))
    return models.CreateSessionResponse(session_id=session.session_id, warning_message=warning)


async def session_heartbeat(state: State, call: APICall) -> models.SessionHeartbeatResponse:
    """Record a heartbeat of a session; 410 if it has ended."""
    request = call.read(models.SessionHeartbeatRequest)
    with state.lock() as shared:
        session = shared.store.session(request.session_id)
        if session.end is not None:
            raise APIProblem(410, f"session {request.session_id!r} has ended", code="session_ended")
        shared.store.touch(session)
    return models.SessionHeartbeatResponse()


async def finish_session(state: State, call: APICall) -> None:
    """End a session; ending it again changes nothing."""
    end = call.read(models.FinishSessionRequest)
    # of reasons that are not known, more is not known
    if isinstance(end.reason, dict) and "type" not in end.reason:
        raise APIProblem(422, "reason has no type")
    with state.lock() as shared:
        session = shared.store.session(call.path["session_id"])
        shared.store.end_session(session, SessionEnd(reason=end.reason, detail=end.detail))


async def get_server_capabilities(
    state: State, call: APICall
) -> models.GetServerCapabilitiesResponse:
    """Describe the loaded models."""
    found = [
        models.SupportedModel(
            model_name=engine.base_model,
            max_context_length=engine.max_context_length,
            trainable=True,
            sampleable=True,
        )
        for engine in await state.engines()
    ]
    return models.GetServerCapabilitiesResponse(supported_models=found)


MAX_RESULTS = 200


async def list_sessions(state: State, call: APICall) -> models.ListSessionsResponse:
    """Return a page of ids, the newest first."""
    limit, offset = call.query_integer("limit", 20), call.query_integer("offset", 0)
    call.check_scope()
    with state.lock() as shared:
        page = shared.store.sessions()[offset : offset + limit]
    return models.ListSessionsResponse(sessions=[session.session_id for session in page])


async def get_session(state: State, call: APICall) -> models.GetSessionResponse:
    """Return the models and samplers of one session."""
    call.check_scope()
    with state.lock() as shared:
        session = shared.store.session(call.path["session_id"])
        return models.GetSessionResponse(
            training_run_ids=[model.model_id for model in session.models.values()],
            sampler_ids=[sampler.sampler_id for sampler in session.samplers.values()],
            user_metadata=to_string_map(session.request.user_metadata),
            display_name=session.request.display_name,
        )


async def set_session_project(state: State, call: APICall) -> None:
    """Move a session, its runs and their checkpoints."""
    project_id = call.read(models.SetSessionProjectRequest).project_id
    if not project_id.strip():
        raise APIProblem(400, "project_id is empty")
    with state.lock() as shared:
        session = shared.store.session(call.path["session_id"])
        write_down(state, call, session.session_id)
        session.project_id = project_id
        for model in session.models.values():
            for record in state.checkpoints.list(model.model_id):
                state.checkpoints.update(record, project_id=project_id)
        shared.audit.record(
            "session_moved", "projects", session_id=session.session_id, project_id=project_id
        )


async def search_sessions(state: State, call: APICall) -> models.SessionSearchResponse:
    """Return a page of the sessions that meet every condition, the newest first."""
    request = call.read(models.SessionSearchRequest)
    if not 1 <= request.limit <= MAX_RESULTS:
        raise unprocessable("limit", f"{request.limit} must be 1 to {MAX_RESULTS}")
    with state.lock() as shared:
        found = [session for session in shared.store.sessions() if _matches(session, request)]
    if request.cursor is not None:
        last = request.cursor.last_created_at.timestamp(), request.cursor.last_session_id
        found = [session for session in found if _sort_key(session) < last]
    page, rest = found[: request.limit], found[request.limit :]
    records = await state.offload_always(state.checkpoints.list)
    return models.SessionSearchResponse(
        sessions=[summarize_session(session, records) for session in page],
        next_cursor=_to_cursor(page[-1]) if rest else None,
    )


def _matches(session: SessionRecord, request: models.SessionSearchRequest) -> bool:
    metadata = to_string_map(session.request.user_metadata) or {}
    return (
        request.session_id in (None, session.session_id)
        and (request.project_ids is None or session.project_id in request.project_ids)
        and (request.display_name or "") in (session.request.display_name or "")
        and request.user_metadata.items() <= metadata.items()
        and (
            not isinstance(request.owner, models.UserSearchOwner)
            or OWNER in request.owner.owner_urns
        )
        and (
            request.statuses is None
            or any(_has_status(session, status) for status in request.statuses)
        )
    )


def _has_status(session: SessionRecord, wanted: models.SessionStatusQuery) -> bool:
    """Return whether a session has this status. Sessions do not fail here; requests do."""
    if isinstance(wanted, models.ActiveSessionStatusQuery):
        return session.end is None
    if isinstance(wanted, models.CancelledSessionStatusQuery):
        return session.end is not None and session.end.reason is None
    if isinstance(wanted, models.ClientFinishedSessionStatusQuery):
        reason = None if session.end is None else session.end.reason
        return reason is not None and (
            wanted.reasons is None or _reason_type(reason) in wanted.reasons
        )
    return False


def _sort_key(session: SessionRecord) -> tuple[float, str]:
    """Order by creation, as a cursor can express it."""
    return to_utc(session.created_at).timestamp(), session.session_id


def _to_cursor(session: SessionRecord) -> models.SessionSearchCursor:
    return models.SessionSearchCursor(
        last_created_at=to_utc(session.created_at), last_session_id=session.session_id
    )


async def trace_export(state: State, call: APICall) -> models.TraceExportResponse:
    """Return "pending" first; then a link to the trace as it was when the export began."""
    with state.lock() as shared:
        session = shared.store.session(call.path["session_id"])
    ready = state.exports.is_ready(session)
    if not ready:
        return models.TraceExportResponse(status="pending")
    return models.TraceExportResponse(
        status="ready", url=state.links.trace_url(call.base_url, session.session_id)
    )


def _reason_type(reason: models.ClientSessionFinishReason) -> str:
    return str(reason.get("type")) if isinstance(reason, dict) else reason.type
