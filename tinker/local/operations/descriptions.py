"""Checkpoints, training runs and sessions as clients see them, and how requests name and search for checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec
from tinker_wire import limits, models

from tinker.local.call import APICall
from tinker.local.engines.protocol import EngineError
from tinker.local.errors import APIProblem, make_not_found, unprocessable
from tinker.local.state import State
from tinker.local.storage.access import OWNER
from tinker.local.storage.checkpoints import CHECKPOINT_KINDS, CheckpointKind, CheckpointRecord, checkpoint_path, to_utc
from tinker.local.storage.sessions import ModelRecord, SessionRecord
from tinker.types.paths import ParsedCheckpointTinkerPath


def public_checkpoint(record: CheckpointRecord) -> models.Checkpoint:
    """Describe a checkpoint to clients."""
    return models.Checkpoint(
        checkpoint_id=record.checkpoint_id,
        checkpoint_type=ParsedCheckpointTinkerPath.from_tinker_path(record.path).checkpoint_type,
        time=to_utc(record.created_at),
        tinker_path=record.path,
        size_bytes=record.nbytes,
        public=record.public,
        user_metadata=to_string_map(record.user_metadata),
        expires_at=None if record.expires_at is None else to_utc(record.expires_at),
        base_model=record.base_model,
    )


def to_string_map(metadata: models.Metadata | None) -> models.StringMap | None:
    """Return metadata as answers carry it: values that are not strings as JSON."""
    if metadata is None:
        return None
    return {key: v if isinstance(v, str) else msgspec.json.encode(v).decode() for key, v in metadata.items()}


def _group_by_run(records: Sequence[CheckpointRecord]) -> dict[str, list[CheckpointRecord]]:
    """Group checkpoints by their run, in the order given."""
    found: dict[str, list[CheckpointRecord]] = {}
    for record in records:
        found.setdefault(record.training_run_id, []).append(record)
    return found


def list_runs(state: State, project_id: str | None) -> list[models.TrainingRun]:
    """List all runs, the newest first."""
    checkpoints = _group_by_run(state.checkpoints.list())
    with state.lock() as shared:
        known = {model.model_id: model for model in shared.store.models()}
    runs = [
        describe_model(model, checkpoints.get(model.model_id, []))
        for model in known.values()
        if project_id in (None, model.session.project_id)
    ]
    runs += [
        describe_checkpoints(records)
        for run, records in checkpoints.items()
        if run not in known and project_id in (None, records[0].project_id)
    ]
    return sorted(runs, key=lambda run: (run.last_request_time, run.training_run_id), reverse=True)


def describe_model(model: ModelRecord, records: Sequence[CheckpointRecord]) -> models.TrainingRun:
    return models.TrainingRun(
        training_run_id=model.model_id,
        base_model=model.base_model,
        model_owner=OWNER,
        is_lora=True,
        corrupted=model.creation_error is not None,
        lora_rank=model.spec.rank,
        last_request_time=to_utc(model.last_request_at),
        last_checkpoint=_find_newest(records, "weights"),
        last_sampler_checkpoint=_find_newest(records, "sampler_weights"),
        user_metadata=to_string_map(model.user_metadata),
    )


def describe_checkpoints(records: Sequence[CheckpointRecord]) -> models.TrainingRun:
    """Describe a run by its checkpoints, the newest of which is the first."""
    newest = records[0]
    return models.TrainingRun(
        training_run_id=newest.training_run_id,
        base_model=newest.base_model,
        model_owner=OWNER,
        is_lora=True,
        lora_rank=newest.lora_config.rank,
        last_request_time=to_utc(newest.created_at),
        last_checkpoint=_find_newest(records, "weights"),
        last_sampler_checkpoint=_find_newest(records, "sampler_weights"),
        user_metadata=to_string_map(newest.run_metadata),
    )


def _find_newest(records: Sequence[CheckpointRecord], kind: CheckpointKind) -> models.Checkpoint | None:
    return next((public_checkpoint(record) for record in records if record.kind == kind), None)


def summarize_session(session: SessionRecord, records: Sequence[CheckpointRecord]) -> models.SessionSummary:
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


SHORTEST_TTL, LONGEST_TTL = 3600, 315_360_000  # an hour, ten years


def check_ttl(seconds: int | None) -> None:
    """Raise APIProblem 400 for a time to live that is out of range; None is forever."""
    if seconds is not None and not SHORTEST_TTL <= seconds <= LONGEST_TTL:
        raise APIProblem(400, f"ttl_seconds is {seconds}; it must be {SHORTEST_TTL} to {LONGEST_TTL}")


def find_checkpoint(state: State, path: str) -> CheckpointRecord:
    """Find the checkpoint of a tinker path of any kind. Raises APIProblem 400 for another text, 404 when unknown."""
    try:
        ParsedCheckpointTinkerPath.from_tinker_path(path)
    except ValueError as error:
        raise APIProblem(400, str(error)) from error
    try:
        return state.checkpoints.find(path, *CHECKPOINT_KINDS)[0]
    except EngineError as error:
        raise APIProblem(404, str(error), code="checkpoint_not_found") from error


def find_addressed(state: State, call: APICall, *kinds: CheckpointKind) -> CheckpointRecord:
    """Find the checkpoint in the URL. Raises APIProblem 400 for a wrong name, 404 when unknown, 425 while it is written."""
    run, wanted = call.path["training_run_id"], call.path["checkpoint_id"]
    kind, _, name = wanted.rpartition("/")
    if kind not in (kinds or CHECKPOINT_KINDS):
        expected = " or ".join(f"'{kind}/<name>'" for kind in kinds or CHECKPOINT_KINDS)
        raise APIProblem(
            400, f"Invalid checkpoint identifier {wanted!r}. Expected {expected}, where <name> is one path segment."
        )
    return require_checkpoint(state, run, kind, name)


def require_checkpoint(state: State, run: str, kind: CheckpointKind, name: str) -> CheckpointRecord:
    """Return the checkpoint. Raises APIProblem 404 when it is unknown, 425 while it is written."""
    path = checkpoint_path(run, kind, name)
    try:
        record = state.checkpoints.get(run, kind, name)
    except EngineError as error:
        raise APIProblem(404, str(error), code="checkpoint_not_found") from error
    if record is not None:
        return record
    with state.lock() as shared:
        model = shared.store.find_model(run)
        if model is not None and path in model.reserved_paths:
            raise APIProblem(425, f"the checkpoint {path} is still being written", {"retry-after": "1"})
    raise make_not_found("checkpoint_not_found", path)


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
