"""Handlers of configuration, sessions, keys, usage, the audit log and telemetry."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from msgspec import structs
from tinker_wire import models

from tinker.local.call import APICall, APIProblem, unprocessable
from tinker.local.handlers.common import (
    meets_conditions,
    other_names_warning,
    to_string_map,
    write_down,
)
from tinker.local.handlers.training import LOSS_SETTINGS
from tinker.local.state import SharedData, State
from tinker.local.storage import OWNER, USER_EMAIL, USER_NAME, CheckpointRecord, to_utc
from tinker.local.storage.records import GIGABYTE, HOUR
from tinker.local.storage.sessions import SessionEnd, SessionRecord


async def auth_token(state: State, call: APICall) -> models.AuthTokenResponse:
    """Make a token for the key of this request."""
    call.read(models.AuthTokenRequest)
    return models.AuthTokenResponse(jwt=state.accounts.token(call.credential))


async def get_api_key(state: State, call: APICall) -> models.SelfApiKeyResponse:
    """Return the number of the key of this request, and its owner."""
    details = models.SelfApiKeyDetails(
        org_details=models.SelfApiKeyOrganization(name=USER_NAME),
        user_details=models.SelfApiKeyUser(email=USER_EMAIL),
    )
    return models.SelfApiKeyResponse(
        key_id=state.accounts.key_id(_require_key(call)),
        name="local",
        note="a key of this server",
        details=details,
    )


async def delete_api_key(state: State, call: APICall) -> None:
    """Revoke the key of this request, for as long as the server runs."""
    with state.lock() as shared:
        state.accounts.revoke(_require_key(call))
        shared.audit.record(
            "api_key_revoked", "organizations", key_id=state.accounts.key_id(call.credential)
        )


def _require_key(call: APICall) -> bytes:
    if not call.credential:
        raise APIProblem(401, "the request has no key in X-API-Key")
    return call.credential


AUDIT_KINDS = ("all", "checkpoints", "projects", "teams", "organizations")
MAX_RANGE = datetime.timedelta(days=14)


async def get_audit_log(state: State, call: APICall) -> models.AuditLogResponse:
    """Return the user's actions, oldest first."""
    kind, day = call.query_choice("event_type", AUDIT_KINDS), call.query.get("day")
    if day is not None and not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", day):
        raise unprocessable("day", f"{day!r} is not a day like 2026-01-31", source="query")
    with state.lock() as shared:
        return models.AuditLogResponse(entries=shared.audit.entries(kind, day))


async def get_billing_usage(state: State, call: APICall) -> models.BillingUsageResponse:
    """Return tokens, checkpoints and storage by the hour; no prices."""
    since, until = (_read_hour(call, name) for name in ("starting_on", "ending_before"))
    if not since < until <= since + MAX_RANGE:
        raise APIProblem(
            400, f"starting_on must be before ending_before, and by at most {MAX_RANGE.days} days"
        )
    records = await state.offload_always(state.checkpoints.list)
    with state.lock() as shared:
        events = list(shared.usage.events(since.timestamp(), until.timestamp(), records))
        named = {event.session_id for event in events}
        sessions = {
            session.session_id: models.BillingUsageSession(
                user_metadata=to_string_map(session.request.user_metadata)
            )
            for session in shared.store.sessions()
            if session.session_id in named
        }
    return models.BillingUsageResponse(data=events, sessions=sessions)


def _read_hour(call: APICall, name: str) -> datetime.datetime:
    """Read a full hour of the query. Raises APIProblem 400 for anything else."""
    text = call.query.get(name, "")
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None or found.timestamp() % HOUR:
        raise APIProblem(
            400, f"{name} is {text!r}; it must be a full hour in UTC, like 2026-01-31T12:00:00Z"
        )
    return found


async def get_checkpoint_storage_usage(
    state: State, call: APICall
) -> models.CurrentCheckpointStorageUsageResponse:
    """Return the present storage of checkpoints by project; of one project where the query names
    it.
    """
    wanted, sizes = call.query.get("project_id"), defaultdict[str | None, list[int]](list)
    for record in await state.offload_always(state.checkpoints.list):
        if wanted in (None, record.project_id):
            sizes[record.project_id].append(record.nbytes)
    items = [
        models.CurrentCheckpointStorageUsageItem(
            project_id=project,
            org_user_urn=OWNER,
            user_email=USER_EMAIL,
            user_name=USER_NAME,
            checkpoint_count=len(sizes[project]),
            size_bytes=sum(sizes[project]),
            size_gigabytes=sum(sizes[project]) / GIGABYTE,
        )
        for project in sorted(sizes, key=str)
    ]
    return models.CurrentCheckpointStorageUsageResponse(data=items)


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
        numbers = {
            name: float(value)
            for name, value in data.items()
            if name != "step" and (isinstance(value, float) or _is_integer(value))
        }
        model.history.add_report(step, numbers, at)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST <= value <= _MOST


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
        # as a cursor can express the order
        found = [
            session
            for session in found
            if (to_utc(session.created_at).timestamp(), session.session_id) < last
        ]
    page, rest = found[: request.limit], found[request.limit :]
    records = await state.offload_always(state.checkpoints.list)
    return models.SessionSearchResponse(
        sessions=[_summarize(session, records) for session in page],
        next_cursor=models.SessionSearchCursor(
            last_created_at=to_utc(page[-1].created_at), last_session_id=page[-1].session_id
        )
        if rest
        else None,
    )


def _matches(session: SessionRecord, request: models.SessionSearchRequest) -> bool:
    return (
        request.session_id in (None, session.session_id)
        and (request.display_name or "") in (session.request.display_name or "")
        and meets_conditions(request, session.project_id, session.request.user_metadata)
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
        kind = str(reason.get("type")) if isinstance(reason, dict) else reason and reason.type
        return reason is not None and (wanted.reasons is None or kind in wanted.reasons)
    return False


async def trace_export(state: State, call: APICall) -> models.TraceExportResponse:
    """Return "pending" first; then a link to the trace as it was when the export began."""
    with state.lock() as shared:
        session = shared.store.session(call.path["session_id"])
    if not state.exports.is_ready(session):
        return models.TraceExportResponse(status="pending")
    url = state.links.url(
        call.base_url, {"what": "trace", "session": session.session_id}, "trace.json"
    )
    return models.TraceExportResponse(status="ready", url=url)


def _summarize(
    session: SessionRecord, records: Sequence[CheckpointRecord]
) -> models.SessionSummary:
    runs = {model.model_id for model in session.models.values()}
    its_own = [record for record in records if record.training_run_id in runs]
    return models.SessionSummary(
        session_id=session.session_id,
        created_at=to_utc(session.created_at),
        owner=OWNER,
        project_id=session.project_id,
        status=_session_status(session),
        checkpoints_count=len(its_own),
        display_name=session.request.display_name,
        user_metadata=to_string_map(session.request.user_metadata),
        checkpoint_storage_bytes=sum(record.nbytes for record in its_own),
    )


def _session_status(session: SessionRecord) -> models.SessionStatus:
    if session.end is None:
        return models.SessionActive()
    if session.end.reason is None:
        return models.SessionCancelled(detail=session.end.detail)
    return models.ClientSessionFinished(reason=session.end.reason, detail=session.end.detail)
