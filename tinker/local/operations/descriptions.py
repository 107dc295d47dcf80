"""Checkpoints, training runs and sessions as clients see them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from tinker_wire import models

from tinker.local.state import State
from tinker.local.storage.access import OWNER
from tinker.local.storage.checkpoints import CheckpointKind, CheckpointRecord, to_utc
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
    return {
        key: v if isinstance(v, str) else msgspec.json.encode(v).decode()
        for key, v in metadata.items()
    }


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


def _find_newest(
    records: Sequence[CheckpointRecord], kind: CheckpointKind
) -> models.Checkpoint | None:
    return next((public_checkpoint(record) for record in records if record.kind == kind), None)


def summarize_session(
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
