"""Handlers of weights: saves and loads, which run in the order of the model's requests, and checkpoints at rest."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from email.utils import format_datetime

import msgspec
from starlette.responses import Response
from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.engines.protocol import Engine, EngineError
from tinker.local.errors import APIProblem, conflict, make_not_found
from tinker.local.naming import choose_engine_for
from tinker.local.operations.descriptions import (
    check_ttl,
    find_addressed,
    find_checkpoint,
    public_checkpoint,
    require_checkpoint,
    search_records,
)
from tinker.local.operations.models import optimizer_config
from tinker.local.operations.submission import enqueue_idempotent, fingerprint
from tinker.local.operations.uploads import finish_upload, open_upload
from tinker.local.operations.weights import Save, drop_checkpoint, load_into_model, load_into_new_model
from tinker.local.state import SharedData, State
from tinker.local.storage.checkpoint_records import CheckpointRecord, checkpoint_path
from tinker.local.storage.sessions import LoadWeights, ModelRecord


async def save_weights(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Save weights and optimizer state under a name; without one, under the request's number."""
    request = call.read(models.SaveWeightsRequest)
    with state.lock() as shared:
        save = Save(state, shared, call, request, "weights")
        return save.enqueue(lambda record: models.SaveWeightsResponse(path=record.path), overwrite=request.overwrite)


async def save_weights_for_sampler(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Save weights to sample from: under a name on disk, or as a sampling session."""
    request = call.read(models.SaveWeightsForSamplerRequest)
    with state.lock() as shared:
        if request.path is None and request.sampling_session_seq_id is not None:
            return _save_as_session(state, shared, call, request, request.sampling_session_seq_id)
        save = Save(state, shared, call, request, "sampler_weights")
        return save.enqueue(lambda record: models.SaveWeightsForSamplerResponseInternal(path=record.path))


async def save_weights_external(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Save weights to download, as the engine writes them: PEFT's own files where torch trains."""
    request = call.read(models.SaveWeightsExternalRequest)
    answer = models.SaveWeightsExternalResponseInternal
    with state.lock() as shared:
        save = Save(state, shared, call, request, "external_weights")
        return save.enqueue(lambda record: answer(path=record.path, size_bytes=record.nbytes))


def _save_as_session(
    state: State, shared: SharedData, call: APICall, request: models.SaveWeightsForSamplerRequest, sampler_number: int
) -> models.UntypedAPIFuture:
    model = shared.store.model(request.model_id)
    sampler = shared.store.new_sampler(model.session, sampler_number, model.base_model, model.engine_model, None, None)
    sampler.requested_name = model.requested_name
    number = model.queue.assign_number(request.seq_id)

    def run(engine: Engine) -> models.SaveWeightsForSamplerResponseInternal:
        try:
            model.require_ready()
            kept = _freeze(state, engine, model, number, request.kind)
            if request.kind == "inflight":
                model.inflight, kept = kept, model.inflight_weights
            sampler.weights = kept
        except Exception:
            with state.lock() as again:
                again.store.drop_sampler(sampler)
            raise
        return models.SaveWeightsForSamplerResponseInternal(sampling_session_id=sampler.sampler_id)

    prepare: Callable[[], None] = lambda: shared.store.add_sampler(sampler_number, sampler)  # noqa: E731
    undo: Callable[[], None] = lambda: shared.store.drop_sampler(sampler)  # noqa: E731
    return enqueue_idempotent(state, call, model, number, fingerprint(request), run, prepare=prepare, undo=undo)


def _freeze(state: State, engine: Engine, model: ModelRecord, number: int, kind: str | None) -> LoadWeights:
    """Keep the present weights for samples. Those of an inflight sampler need no copy on disk if the engine is the sampler."""
    is_kept, in_memory = state.journal.is_kept, state.served.find(model.engine_model).is_own_sampler
    if kind == "inflight" and in_memory and not is_kept:
        frozen = engine.snapshot(model.model_id)
        return lambda _: frozen
    return state.snapshots.save(engine, model.model_id, str(number) if is_kept else "", in_memory=in_memory)


async def load_weights(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Load a checkpoint: into an existing model (by id), or into a new one (by session and number)."""
    request = call.read(models.LoadWeightsRequest)
    if request.model_id is not None:
        return load_into_model(state, call, request, request.model_id)
    if request.session_id is None or request.model_seq_id is None:
        raise APIProblem(422, "either model_id, or session_id together with model_seq_id, says where to load")
    return await load_into_new_model(state, call, request, request.session_id, request.model_seq_id)


async def list_checkpoints(state: State, call: APICall) -> models.CheckpointsListResponse:
    """Return those of one run, the newest first."""
    run = call.path["training_run_id"]
    records = await state.offload_always(lambda: state.checkpoints.list(run))
    with state.lock() as shared:
        if not records and shared.store.find_model(run) is None:
            raise make_not_found("training_run_not_found", run)
    return models.CheckpointsListResponse(checkpoints=[public_checkpoint(record) for record in records])


async def list_user_checkpoints(state: State, call: APICall) -> models.CheckpointsListResponse:
    """Return a page of all, the newest first."""
    limit, offset = call.query_integer("limit", 100), call.query_integer("offset", 0)
    records = await state.offload_always(state.checkpoints.list)
    page = [public_checkpoint(record) for record in records[offset : offset + limit]]
    cursor = models.Cursor(offset=offset, limit=limit, total_count=len(records))
    return models.CheckpointsListResponse(checkpoints=page, cursor=cursor)


async def search_checkpoints(state: State, call: APICall) -> models.CheckpointSearchResponse:
    """Return a page of the checkpoints that meet every condition, the newest first."""
    request = call.read(models.CheckpointSearchRequest)
    return search_records(request, await state.offload_always(state.checkpoints.list))


async def external_weights_upload_start(state: State, call: APICall) -> models.ExternalWeightsUploadStartResult:
    """Return a link for each file of an adapter; they end after ``link_seconds``."""
    request = call.read(models.ExternalWeightsUploadStartRequest)
    engine, base_model = choose_engine_for(state, await state.engines(), request.base_model)
    upload = open_upload(state, engine, base_model, request)
    urls = {name: state.links.upload_url(call.base_url, upload.upload_id, name) for name in sorted(upload.names)}
    return models.ExternalWeightsUploadStartResult(upload_id=upload.upload_id, urls=urls, expires=state.links.expires_at())


async def external_weights_upload_finish(state: State, call: APICall) -> models.ExternalWeightsUploadFinishResult:
    """Make a checkpoint to train from of the files that were sent."""
    request = call.read(models.ExternalWeightsUploadFinishRequest)
    return models.ExternalWeightsUploadFinishResult(tinker_path=await finish_upload(state, request.upload_id))


async def weights_info(state: State, call: APICall) -> models.WeightsInfoResponse:
    """Describe a checkpoint. Raises APIProblem 400 for a text that is not a path, 404 for an unknown checkpoint."""
    record = find_checkpoint(state, call.read(models.WeightsInfoRequest).tinker_path)
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


async def delete_checkpoint(state: State, call: APICall) -> None:
    """Delete a checkpoint."""
    with state.lock() as shared:
        drop_checkpoint(state, shared, find_addressed(state, call))


async def publish_checkpoint(state: State, call: APICall) -> None:
    """Mark as public; 409 when it is already. This server has one user, so nothing else changes."""
    _set_public(state, call, True)


async def unpublish_checkpoint(state: State, call: APICall) -> None:
    """Mark as private; 409 when it is already."""
    _set_public(state, call, False)


def _set_public(state: State, call: APICall, public: bool) -> None:
    with state.lock() as shared:
        record = find_addressed(state, call)
        if record.public == public:
            raise conflict(f"the checkpoint {record.path} is {'public' if public else 'private'} already")
        state.checkpoints.update(record, public=public)
        shared.audit.record_checkpoint("checkpoint_published" if public else "checkpoint_unpublished", record)


async def set_checkpoint_ttl(state: State, call: APICall) -> None:
    """Set the time to live, counted from now; null keeps the checkpoint forever."""
    seconds = call.read(models.SetCheckpointTtlRequest).ttl_seconds
    check_ttl(seconds)
    with state.lock() as shared:
        record = find_addressed(state, call)
        state.checkpoints.update(record, expires_at=None if seconds is None else state.now() + seconds)
        shared.audit.record_checkpoint("checkpoint_ttl_set", record, ttl_seconds=seconds)


async def copy_weights(state: State, call: APICall) -> models.CopyWeightsResponse:
    """Copy a checkpoint, with its kind and name, to a new run, which cannot be trained on. Files are shared on disk."""
    request = call.read(models.CopyWeightsRequest)
    check_ttl(request.ttl_seconds)
    source = find_checkpoint(state, request.source_path)
    with state.lock() as shared:
        run = _new_run(state, shared, request)
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
        raise conflict(str(error), "name_taken") from error
    with state.lock() as shared:
        shared.audit.record_checkpoint("checkpoint_copied", record, source=source.path)
    return models.CopyWeightsResponse(tinker_path=record.path)


def _new_run(state: State, shared: SharedData, request: models.CopyWeightsRequest) -> str:
    """Return the id of the copy's run: the one that the client numbered, else a new one."""
    if request.session_id is None or request.model_seq_id is None:
        return str(uuid.uuid4())
    session = shared.store.live_session(request.session_id)
    run = state.settings.profile.ids.model(session.session_id, request.model_seq_id)
    if request.model_seq_id in session.models or state.checkpoints.list(run):
        raise conflict(f"the training run {run!r} exists; choose another model_seq_id", "name_taken")
    return run


async def get_external_weights_urls(state: State, call: APICall) -> models.ExternalWeightsUrlsResponse:
    """Return a link to each file; they end after ``link_seconds``."""
    record = find_addressed(state, call, "external_weights")
    urls = {name: state.links.file_url(call.base_url, record, name) for name in state.checkpoints.files(record)}
    _record_download(state, record)
    return models.ExternalWeightsUrlsResponse(urls=urls, expires=state.links.expires_at())


async def get_checkpoint_archive(state: State, call: APICall) -> Response:
    """Redirect to a tar.gz of all files. A bare name means weights to sample from."""
    if "/" in call.path["checkpoint_id"]:
        record = find_addressed(state, call, "weights", "sampler_weights")
    else:
        record = require_checkpoint(state, call.path["training_run_id"], "sampler_weights", call.path["checkpoint_id"])
    location = state.links.archive_url(call.base_url, record)
    _record_download(state, record)
    return Response(None, 302, {"location": location, "expires": format_datetime(state.links.expires_at(), usegmt=True)})


def _record_download(state: State, record: CheckpointRecord) -> None:
    with state.lock() as shared:
        shared.audit.record_checkpoint("checkpoint_read", record, "download")
