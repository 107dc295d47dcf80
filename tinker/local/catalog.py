"""Handlers of checkpoints at rest: list, describe, copy, publish, keep for a time, delete, and hand out their files."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from email.utils import format_datetime

import msgspec
from starlette.responses import Response
from tinker_wire import models

from tinker.local.call import Call
from tinker.local.checkpoints import KINDS, CheckpointRecord, Kind, checkpoint_path
from tinker.local.engines.protocol import EngineError
from tinker.local.ledger import time_of_day
from tinker.local.optimizer import optimizer_config
from tinker.local.problem import Problem, exists, not_found
from tinker.local.state import State
from tinker.types.paths import ParsedCheckpointTinkerPath

SHORTEST_TTL, LONGEST_TTL = 3600, 315_360_000  # an hour, ten years


def check_ttl(seconds: int | None) -> None:
    """Problem 400 for a time to live that is not possible; None is for ever."""
    if seconds is not None and not SHORTEST_TTL <= seconds <= LONGEST_TTL:
        raise Problem(400, f"ttl_seconds is {seconds}; {SHORTEST_TTL} to {LONGEST_TTL} is possible")


# Reading


async def list_checkpoints(state: State, call: Call) -> models.CheckpointsListResponse:
    """Those of one run, the newest first."""
    run = call.path["training_run_id"]
    records = await state.offload_always(lambda: state.checkpoints.list(run))
    with state.lock:
        if not records and state.store.find_model(run) is None:
            raise not_found("training run", run)
    return models.CheckpointsListResponse(checkpoints=[public_checkpoint(record) for record in records])


async def list_user_checkpoints(state: State, call: Call) -> models.CheckpointsListResponse:
    """A page of all, the newest first."""
    limit, offset = call.integer("limit", 100), call.integer("offset", 0)
    records = await state.offload_always(state.checkpoints.list)
    page = [public_checkpoint(record) for record in records[offset : offset + limit]]
    cursor = models.Cursor(offset=offset, limit=limit, total_count=len(records))
    return models.CheckpointsListResponse(checkpoints=page, cursor=cursor)


def public_checkpoint(record: CheckpointRecord) -> models.Checkpoint:
    """What clients see of a checkpoint."""
    return models.Checkpoint(
        checkpoint_id=record.checkpoint_id,
        checkpoint_type=ParsedCheckpointTinkerPath.from_tinker_path(record.path).checkpoint_type,
        time=time_of_day(record.created_at),
        tinker_path=record.path,
        size_bytes=record.nbytes,
        public=record.public,
        user_metadata=words(record.user_metadata),
        expires_at=None if record.expires_at is None else time_of_day(record.expires_at),
    )


def words(metadata: models.Metadata | None) -> models.StringMap | None:
    """Free pairs as answers carry them: values that are no text as JSON."""
    if metadata is None:
        return None
    return {key: v if isinstance(v, str) else msgspec.json.encode(v).decode() for key, v in metadata.items()}


async def weights_info(state: State, call: Call) -> models.WeightsInfoResponse:
    """Of what base model, with which adapter and optimizer. Problem 400 for what is no path, 404 for what is not here."""
    record = find(state, call.read(models.WeightsInfoRequest).tinker_path)
    config = record.lora_config
    return models.WeightsInfoResponse(
        base_model=record.base_model,
        optimizer_config=optimizer_config(record.optimizer),
        is_lora=True,
        lora_rank=config.rank,
        train_unembed=config.train_unembed,
        train_mlp=config.train_mlp,
        train_attn=config.train_attn,
    )


def find(state: State, path: str) -> CheckpointRecord:
    """The checkpoint of a tinker path of any kind. Problem 400 for what is no path, 404 for what is not here."""
    try:
        ParsedCheckpointTinkerPath.from_tinker_path(path)
    except ValueError as error:
        raise Problem(400, str(error)) from error
    try:
        return state.checkpoints.find(path, *KINDS)[0]
    except EngineError as error:
        raise Problem(404, str(error)) from error


def addressed(state: State, call: Call, *kinds: Kind) -> CheckpointRecord:
    """The checkpoint that the path names. Problem 400 for a wrong name, 404 when it is not here, 425 while it is written."""
    run, wanted = call.path["training_run_id"], call.path["checkpoint_id"]
    kind, _, name = wanted.rpartition("/")
    if kind not in (kinds or KINDS):
        expected = " or ".join(f"'{kind}/<name>'" for kind in kinds or KINDS)
        raise Problem(400, f"Invalid checkpoint identifier {wanted!r}. Expected {expected}, where <name> is one path segment.")
    return present(state, run, kind, name)


def present(state: State, run: str, kind: Kind, name: str) -> CheckpointRecord:
    """The checkpoint. Problem 404 when it is not here, 425 while it is written."""
    path = checkpoint_path(run, kind, name)
    try:
        record = state.checkpoints.get(run, kind, name)
    except EngineError as error:
        raise Problem(404, str(error)) from error
    if record is not None:
        return record
    with state.lock:
        model = state.store.find_model(run)
        if model is not None and path in model.names:
            raise Problem(425, f"the checkpoint {path} is still being written", {"retry-after": "1"})
    raise not_found("checkpoint", path)


# Changing


async def delete_checkpoint(state: State, call: Call) -> None:
    """For good. Samplers that have its weights in memory go on."""
    with state.lock:
        record = addressed(state, call)
        state.checkpoints.delete(record)
        state.ledger.removed(record)
        state.ledger.note_checkpoint("checkpoint_deleted", record)


async def publish_checkpoint(state: State, call: Call) -> None:
    """Notes that everybody may use it; 409 when that is so. This server has one user, so nothing else changes."""
    _set_public(state, call, True)


async def unpublish_checkpoint(state: State, call: Call) -> None:
    """The reverse."""
    _set_public(state, call, False)


def _set_public(state: State, call: Call, public: bool) -> None:
    with state.lock:
        record = addressed(state, call)
        if record.public == public:
            raise exists(f"the checkpoint {record.path} is {'public' if public else 'private'} already")
        state.checkpoints.update(record, public=public)
        state.ledger.note_checkpoint("checkpoint_published" if public else "checkpoint_unpublished", record)


async def set_checkpoint_ttl(state: State, call: Call) -> None:
    """When it goes, counted from now; null keeps it for ever."""
    seconds = call.read(models.SetCheckpointTtlRequest).ttl_seconds
    check_ttl(seconds)
    with state.lock:
        record = addressed(state, call)
        state.checkpoints.update(record, expires_at=None if seconds is None else state.now() + seconds)
        state.ledger.note_checkpoint("checkpoint_ttl_set", record, ttl_seconds=seconds)


async def copy_weights(state: State, call: Call) -> models.CopyWeightsResponse:
    """A copy of the same kind and name in a run of its own, which cannot be trained on. The files are shared on disk."""
    request = call.read(models.CopyWeightsRequest)
    check_ttl(request.ttl_seconds)
    source = find(state, request.source_path)
    with state.lock:
        run = _new_run(state, request)
    record = msgspec.structs.replace(
        source,
        path=checkpoint_path(run, source.kind, source.name),
        training_run_id=run,
        created_at=state.now(),
        expires_at=None if request.ttl_seconds is None else state.now() + request.ttl_seconds,
        public=False,
        session_id=request.session_id,
        project_id=request.destination_project_id or source.project_id,
    )
    try:
        await state.offload_always(lambda: state.checkpoints.copy(source, record))
    except EngineError as error:
        raise exists(str(error)) from error
    with state.lock:
        state.ledger.note_checkpoint("checkpoint_copied", record, source=source.path)
    return models.CopyWeightsResponse(tinker_path=record.path)


def _new_run(state: State, request: models.CopyWeightsRequest) -> str:
    """The id of the copy's run: the one that the client numbered, else a new one."""
    if request.session_id is None or request.model_seq_id is None:
        return str(uuid.uuid4())
    session = state.store.live_session(request.session_id)
    run = state.settings.profile.names.model(session.session_id, request.model_seq_id)
    if request.model_seq_id in session.models or state.checkpoints.list(run):
        raise exists(f"the training run {run!r} exists; choose another model_seq_id")
    return run


# Files


async def get_external_weights_urls(state: State, call: Call) -> models.ExternalWeightsUrlsResponse:
    """A link to each file; they end after ``link_seconds``."""
    record = addressed(state, call, "external_weights")
    urls = {name: state.links.url(call, "file", record, name) for name in state.checkpoints.files(record)}
    _note_download(state, record)
    return models.ExternalWeightsUrlsResponse(urls=urls, expires=state.links.expires())


async def get_checkpoint_archive(state: State, call: Call) -> Response:
    """A redirect to a tar.gz of all files. A bare name is that of weights to sample from."""
    if "/" in call.path["checkpoint_id"]:
        record = addressed(state, call, "weights", "sampler_weights")
    else:
        record = present(state, call.path["training_run_id"], "sampler_weights", call.path["checkpoint_id"])
    location = state.links.url(call, "archive", record, f"{record.name}.tar.gz")
    _note_download(state, record)
    return Response(None, 302, {"location": location, "expires": format_datetime(state.links.expires(), usegmt=True)})


def _note_download(state: State, record: CheckpointRecord) -> None:
    with state.lock:
        state.ledger.note_checkpoint("checkpoint_read", record, "download")


def by_run(records: Sequence[CheckpointRecord]) -> dict[str, list[CheckpointRecord]]:
    """Checkpoints by their run, in the order given."""
    found: dict[str, list[CheckpointRecord]] = {}
    for record in records:
        found.setdefault(record.training_run_id, []).append(record)
    return found
