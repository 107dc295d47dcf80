"""Handlers of sessions as things to look at: list, describe, search, move into a project, and their traces."""

from __future__ import annotations

from collections.abc import Sequence

from tinker_wire import models

from tinker.local.accounts import OWNER
from tinker.local.call import Call
from tinker.local.catalog import words
from tinker.local.checkpoints import CheckpointRecord
from tinker.local.ledger import time_of_day
from tinker.local.problem import Problem, misfit
from tinker.local.runs import SCOPES
from tinker.local.state import State
from tinker.local.store import Session

MOST_RESULTS = 200


async def list_sessions(state: State, call: Call) -> models.ListSessionsResponse:
    """A page of ids, the newest first."""
    limit, offset = call.integer("limit", 20), call.integer("offset", 0)
    call.word("access_scope", SCOPES)
    with state.lock:
        page = state.store.sessions()[offset : offset + limit]
    return models.ListSessionsResponse(sessions=[session.session_id for session in page])


async def get_session(state: State, call: Call) -> models.GetSessionResponse:
    """The models and samplers of one session."""
    call.word("access_scope", SCOPES)
    with state.lock:
        session = state.store.session(call.path["session_id"])
        return models.GetSessionResponse(
            training_run_ids=[model.model_id for model in session.models.values()],
            sampler_ids=[sampler.sampler_id for sampler in session.samplers.values()],
            user_metadata=words(session.request.user_metadata),
            display_name=session.request.display_name,
        )


async def set_session_project(state: State, call: Call) -> None:
    """Moves a session, its runs and their checkpoints."""
    project_id = call.read(models.SetSessionProjectRequest).project_id
    if not project_id.strip():
        raise Problem(400, "project_id is empty")
    with state.lock:
        session = state.store.session(call.path["session_id"])
        session.project_id = project_id
        for model in session.models.values():
            for record in state.checkpoints.list(model.model_id):
                state.checkpoints.update(record, project_id=project_id)
        state.ledger.note("session_moved", "projects", session_id=session.session_id, project_id=project_id)


# Search


async def search_sessions(state: State, call: Call) -> models.SessionSearchResponse:
    """A page of the sessions that meet every condition, the newest first."""
    request = call.read(models.SessionSearchRequest)
    if not 1 <= request.limit <= MOST_RESULTS:
        raise misfit("limit", f"{request.limit} is not possible; 1 to {MOST_RESULTS} is")
    with state.lock:
        found = [session for session in state.store.sessions() if _is_wanted(session, request)]
    if request.cursor is not None:
        last = request.cursor.last_created_at.timestamp(), request.cursor.last_session_id
        found = [session for session in found if _order(session) < last]
    page, rest = found[: request.limit], found[request.limit :]
    records = await state.offload_always(state.checkpoints.list)
    return models.SessionSearchResponse(
        sessions=[_summary(session, records) for session in page], next_cursor=_cursor(page[-1]) if rest else None
    )


def _is_wanted(session: Session, request: models.SessionSearchRequest) -> bool:
    metadata = words(session.request.user_metadata) or {}
    return (
        request.session_id in (None, session.session_id)
        and (request.project_ids is None or session.project_id in request.project_ids)
        and (request.display_name or "") in (session.request.display_name or "")
        and request.user_metadata.items() <= metadata.items()
        and (not isinstance(request.owner, models.UserSearchOwner) or OWNER in request.owner.owner_urns)
        and (request.statuses is None or any(_is_in(session, status) for status in request.statuses))
    )


def _is_in(session: Session, wanted: models.SessionStatusQuery) -> bool:
    """Sessions do not fail here: what fails is one request."""
    if isinstance(wanted, models.ActiveSessionStatusQuery):
        return session.end is None
    if isinstance(wanted, models.CancelledSessionStatusQuery):
        return session.end is not None and session.end.reason is None
    if isinstance(wanted, models.ClientFinishedSessionStatusQuery):
        reason = None if session.end is None else session.end.reason
        return reason is not None and (wanted.reasons is None or _word(reason) in wanted.reasons)
    return False


def _order(session: Session) -> tuple[float, str]:
    """By creation, as a cursor can say it."""
    return time_of_day(session.created_at).timestamp(), session.session_id


def _cursor(session: Session) -> models.SessionSearchCursor:
    return models.SessionSearchCursor(last_created_at=time_of_day(session.created_at), last_session_id=session.session_id)


def _summary(session: Session, records: Sequence[CheckpointRecord]) -> models.SessionSummary:
    runs = {model.model_id for model in session.models.values()}
    its_own = [record for record in records if record.training_run_id in runs]
    return models.SessionSummary(
        session_id=session.session_id,
        created_at=time_of_day(session.created_at),
        owner=OWNER,
        project_id=session.project_id,
        status=_status(session),
        checkpoints_count=len(its_own),
        display_name=session.request.display_name,
        user_metadata=words(session.request.user_metadata),
        checkpoint_storage_bytes=sum(record.nbytes for record in its_own),
    )


def _status(session: Session) -> models.SessionStatus:
    if session.end is None:
        return models.SessionActive()
    if session.end.reason is None:
        return models.SessionCancelled(detail=session.end.detail)
    return models.ClientSessionFinished(reason=session.end.reason, detail=session.end.detail)


# Traces


async def trace_export(state: State, call: Call) -> models.TraceExportResponse:
    """Pending at first; then a link to the trace as it was when the export was begun, for as long as the link is good."""
    with state.lock:
        session = state.store.session(call.path["session_id"])
    ready = state.exports.ready(session)
    if not ready:
        return models.TraceExportResponse(status="pending")
    return models.TraceExportResponse(status="ready", url=state.links.trace_url(call, session))


def _word(reason: models.ClientSessionFinishReason) -> str:
    return str(reason.get("type")) if isinstance(reason, dict) else reason.type
