"""Handlers of the audit log and of usage: the user's actions, tokens and storage since the server
was started.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable

from tinker_wire import models

from tinker.local.call import APICall, query_problem
from tinker.local.errors import APIProblem
from tinker.local.operations.descriptions import to_string_map
from tinker.local.state import State
from tinker.local.storage.access import OWNER, USER_EMAIL, USER_NAME
from tinker.local.storage.checkpoints import CheckpointRecord
from tinker.local.storage.records import GIGABYTE, HOUR

AUDIT_KINDS = ("all", "checkpoints", "projects", "teams", "organizations")
MAX_RANGE = datetime.timedelta(days=14)


async def get_audit_log(state: State, call: APICall) -> models.AuditLogResponse:
    """Return the user's actions, oldest first."""
    kind, day = call.query_choice("event_type", AUDIT_KINDS), call.query.get("day")
    if day is not None and not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", day):
        raise query_problem("day", f"{day!r} is not a day like 2026-01-31")
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
    records = await state.offload_always(state.checkpoints.list)
    wanted = call.query.get("project_id")
    projects = sorted(
        {record.project_id for record in records if wanted in (None, record.project_id)}, key=str
    )
    return models.CurrentCheckpointStorageUsageResponse(
        data=[
            _to_storage_item(project, (r for r in records if r.project_id == project))
            for project in projects
        ]
    )


def _to_storage_item(
    project_id: str | None, records: Iterable[CheckpointRecord]
) -> models.CurrentCheckpointStorageUsageItem:
    sizes = [record.nbytes for record in records]
    return models.CurrentCheckpointStorageUsageItem(
        project_id=project_id,
        org_user_urn=OWNER,
        user_email=USER_EMAIL,
        user_name=USER_NAME,
        checkpoint_count=len(sizes),
        size_bytes=sum(sizes),
        size_gigabytes=sum(sizes) / GIGABYTE,
    )
