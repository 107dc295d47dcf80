"""Handlers of training runs: the models of this server's sessions, and those of which only checkpoints are left."""

from __future__ import annotations

from collections.abc import Sequence

from tinker_wire import models

from tinker.local.accounts import OWNER
from tinker.local.call import Call
from tinker.local.catalog import by_run, public_checkpoint, words
from tinker.local.checkpoints import CheckpointRecord, Kind
from tinker.local.ledger import time_of_day
from tinker.local.problem import not_found
from tinker.local.state import State
from tinker.local.store import Model

SCOPES = ("owned", "accessible")  # one user owns everything, so both mean all


async def list_training_runs(state: State, call: Call) -> models.TrainingRunsResponse:
    """A page of all, the most recently used first; with a project those of that project."""
    limit, offset = call.integer("limit", 20), call.integer("offset", 0)
    call.word("access_scope", SCOPES)
    runs = await state.offload_always(lambda: _runs(state, call.query.get("project_id")))
    cursor = models.Cursor(offset=offset, limit=limit, total_count=len(runs))
    return models.TrainingRunsResponse(training_runs=runs[offset : offset + limit], cursor=cursor)


async def get_training_run(state: State, call: Call) -> models.TrainingRun:
    """One run. Problem 404 when it is unknown."""
    call.word("access_scope", SCOPES)
    wanted = call.path["training_run_id"]
    records = await state.offload_always(lambda: state.checkpoints.list(wanted))
    with state.lock:
        model = state.store.find_model(wanted)
    if model is not None:
        return _of_model(model, records)
    if records:
        return _of_checkpoints(records)
    raise not_found("training run", wanted)


def _runs(state: State, project_id: str | None) -> list[models.TrainingRun]:
    checkpoints = by_run(state.checkpoints.list())
    with state.lock:
        known = {model.model_id: model for model in state.store.models()}
    runs = [
        _of_model(model, checkpoints.get(model.model_id, []))
        for model in known.values()
        if project_id in (None, model.session.project_id)
    ]
    runs += [
        _of_checkpoints(records)
        for run, records in checkpoints.items()
        if run not in known and project_id in (None, records[0].project_id)
    ]
    return sorted(runs, key=lambda run: (run.last_request_time, run.training_run_id), reverse=True)


def _of_model(model: Model, records: Sequence[CheckpointRecord]) -> models.TrainingRun:
    return models.TrainingRun(
        training_run_id=model.model_id,
        base_model=model.base_model,
        model_owner=OWNER,
        is_lora=True,
        corrupted=model.broken is not None,
        lora_rank=model.spec.rank,
        last_request_time=time_of_day(model.last_request_at),
        last_checkpoint=_newest(records, "weights"),
        last_sampler_checkpoint=_newest(records, "sampler_weights"),
        user_metadata=words(model.user_metadata),
    )


def _of_checkpoints(records: Sequence[CheckpointRecord]) -> models.TrainingRun:
    """A run as its checkpoints remember it, the newest of which is the first."""
    newest = records[0]
    return models.TrainingRun(
        training_run_id=newest.training_run_id,
        base_model=newest.base_model,
        model_owner=OWNER,
        is_lora=True,
        lora_rank=newest.lora_config.rank,
        last_request_time=time_of_day(newest.created_at),
        last_checkpoint=_newest(records, "weights"),
        last_sampler_checkpoint=_newest(records, "sampler_weights"),
        user_metadata=words(newest.run_metadata),
    )


def _newest(records: Sequence[CheckpointRecord], kind: Kind) -> models.Checkpoint | None:
    return next((public_checkpoint(record) for record in records if record.kind == kind), None)
