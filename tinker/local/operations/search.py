"""The search for checkpoints: conditions, order and pages."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tinker_wire import limits, models

from tinker.local.errors import unprocessable
from tinker.local.operations.descriptions import public_checkpoint, to_string_map
from tinker.local.storage.accounts import OWNER
from tinker.local.storage.checkpoint_records import CheckpointRecord
from tinker.local.storage.usage import to_utc

MIN_RESULTS, MAX_RESULTS = limits.CHECKPOINT_SEARCH_REQUEST_LIMIT_MINIMUM, limits.CHECKPOINT_SEARCH_REQUEST_LIMIT_MAXIMUM


def search_records(
    request: models.CheckpointSearchRequest, records: Sequence[CheckpointRecord]
) -> models.CheckpointSearchResponse:
    """Return a page of the checkpoints that meet every condition, the newest first. Raises APIProblem 422 for the limit."""
    if not MIN_RESULTS <= request.limit <= MAX_RESULTS:
        raise unprocessable("limit", f"{request.limit} must be {MIN_RESULTS} to {MAX_RESULTS}")
    found = sorted((record for record in records if _matches(record, request)), key=_sort_key, reverse=True)
    if request.cursor is not None:
        last = request.cursor.last_created_at.timestamp(), request.cursor.last_checkpoint_uuid
        found = [record for record in found if _sort_key(record) < last]
    page, rest = found[: request.limit], found[request.limit :]
    return models.CheckpointSearchResponse(
        checkpoints=[public_checkpoint(record) for record in page], next_cursor=_to_cursor(page[-1]) if rest else None
    )


def _matches(record: CheckpointRecord, request: models.CheckpointSearchRequest) -> bool:
    metadata = to_string_map(record.user_metadata) or {}
    return (
        (request.project_ids is None or record.project_id in request.project_ids)
        and request.user_metadata.items() <= metadata.items()
        and request.checkpoint_type in (None, public_checkpoint(record).checkpoint_type)
        and (not isinstance(request.owner, models.UserSearchOwner) or OWNER in request.owner.owner_urns)
        and (request.base_models is None or record.base_model in request.base_models)
    )


def _sort_key(record: CheckpointRecord) -> tuple[float, str]:
    """Order by creation, as a cursor can express it."""
    return to_utc(record.created_at).timestamp(), str(uuid.uuid5(uuid.NAMESPACE_URL, record.path))


def _to_cursor(record: CheckpointRecord) -> models.CheckpointSearchCursor:
    return models.CheckpointSearchCursor(last_created_at=to_utc(record.created_at), last_checkpoint_uuid=_sort_key(record)[1])
