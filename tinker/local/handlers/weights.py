"""Handlers of weights: saves and loads, which run in the order of the model's requests, checkpoints
at rest, and uploads.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from email.utils import format_datetime
from functools import partial
from typing import TypeAlias

import msgspec
from starlette.responses import Response
from tinker_wire import limits, models

from tinker.local import storage
from tinker.local.call import APICall, APIProblem, conflict, log, make_not_found, unprocessable
from tinker.local.engines.protocol import AdapterSpec, Engine, EngineError
from tinker.local.handlers.common import (
    choose_engine_for,
    enqueue_idempotent,
    fingerprint,
    meets_conditions,
    public_checkpoint,
)
from tinker.local.handlers.training import (
    NewModel,
    adapter_spec,
    check_spec,
    lora_config,
    optimizer_config,
    optimizer_family,
)
from tinker.local.state import SharedData, State
from tinker.local.storage import (
    CHECKPOINT_KINDS,
    AdapterUpload,
    CheckpointKind,
    CheckpointRecord,
    to_utc,
)
from tinker.local.storage.sessions import LoadWeights, ModelRecord
from tinker.types.params import SCHEME, ParsedCheckpointTinkerPath

SHORTEST_TTL, LONGEST_TTL = 3600, 315_360_000  # an hour, ten years
MIN_RESULTS, MAX_RESULTS = (
    limits.CHECKPOINT_SEARCH_REQUEST_LIMIT_MINIMUM,
    limits.CHECKPOINT_SEARCH_REQUEST_LIMIT_MAXIMUM,
)
SaveRequest: TypeAlias = (
    models.SaveWeightsRequest
    | models.SaveWeightsForSamplerRequest
    | models.SaveWeightsExternalRequest
)


class Save:
    """One save under a name. The name is reserved when the request is accepted, so that a second
    one is refused at once.

    Make it and :meth:`enqueue` it under the same lock. One that is repeated because the server was
    killed may have written its checkpoint already.
    """

    def __init__(
        self,
        state: State,
        shared: SharedData,
        call: APICall,
        request: SaveRequest,
        kind: CheckpointKind,
    ) -> None:
        self._state, self._call, self._request = state, call, request
        self._kind: CheckpointKind = kind
        self._model = shared.store.model(request.model_id)
        self._number = self._model.queue.assign_number(request.seq_id)
        self._name = f"{self._number:06d}" if request.path is None else request.path
        self._path = storage.checkpoint_path(self._model.model_id, kind, self._name)
        self._is_repeated = state.repeating is not None
        self._keep_last = (
            None if isinstance(request, models.SaveWeightsExternalRequest) else request.keep_last
        )

    def enqueue(
        self, respond: Callable[[CheckpointRecord], msgspec.Struct], *, overwrite: bool = False
    ) -> models.UntypedAPIFuture:
        """Queue the save, whose result is what ``respond`` makes of the checkpoint."""

        def run(engine: Engine) -> msgspec.Struct:
            return respond(self._run(engine, overwrite=overwrite))

        prepare, same = self._check if overwrite else self._reserve, fingerprint(self._request)
        return enqueue_idempotent(
            self._state,
            self._call,
            self._model,
            self._number,
            same,
            run,
            prepare=prepare,
            undo=self._release,
        )

    def _check(self) -> None:
        """Raise APIProblem 400 for what this server does not do, or a limit of the request that is
        out of range.
        """
        if (
            isinstance(self._request, models.SaveWeightsExternalRequest)
            and self._request.age_encryption_recipients
        ):
            raise APIProblem(
                400, "this server writes files as they are; leave age_encryption_recipients out"
            )
        _check_ttl(self._request.ttl_seconds)
        if self._keep_last is not None and self._keep_last < 1:
            raise APIProblem(400, f"keep_last is {self._keep_last}; it must be at least 1")

    def _reserve(self) -> None:
        """Reserve the name after :meth:`_check`. Raises APIProblem 409 when it is taken."""
        self._check()
        names = self._model.reserved_paths
        is_there = not self._is_repeated and self._state.checkpoints.exists(
            self._model.model_id, self._kind, self._name
        )
        if self._path in names or is_there:
            raise conflict(storage.name_conflict(self._path), "name_taken")
        names.add(self._path)

    def _run(self, engine: Engine, *, overwrite: bool) -> CheckpointRecord:
        """Write the checkpoint."""
        try:
            self._model.require_ready()
            storage.check_name(self._name)
            record = self._state.checkpoints.write(
                self._record(engine),
                lambda folder: engine.save(
                    self._model.model_id, folder, optimizer=self._kind == "weights"
                ),
                overwrite=overwrite or self._is_repeated,
            )
        finally:
            with self._state.lock():
                self._release()
        self._note(record)
        return record

    def _release(self) -> None:
        self._model.reserved_paths.discard(self._path)

    def _note(self, record: CheckpointRecord) -> None:
        """Record the checkpoint, and delete those that the request does not keep."""
        session, keep = self._model.session, self._keep_last
        older = [] if keep is None else self._state.checkpoints.list(self._model.model_id)
        same = [
            one
            for one in older
            if one.kind == self._kind and not one.public and one.path != record.path
        ]
        with self._state.lock() as shared:
            shared.audit.record_checkpoint("checkpoint_created", record)
            shared.usage.count("checkpoint", 1, session.usage_key(record.base_model))
            for one in same[max(0, (keep or 1) - 1) :]:
                try:
                    _drop_checkpoint(self._state, shared, one)
                except OSError as error:  # what was to be saved is saved
                    log.error("cannot delete %s, which keep_last leaves out: %s", one.path, error)

    def _record(self, engine: Engine) -> CheckpointRecord:
        now, ttl, session = self._state.now(), self._request.ttl_seconds, self._model.session
        return CheckpointRecord(
            path=self._path,
            training_run_id=self._model.model_id,
            kind=self._kind,
            name=self._name,
            base_model=self._model.base_model,
            engine_model=engine.base_model,
            lora_config=lora_config(self._model.spec),
            optimizer=self._model.optimizer,
            steps=self._model.history.step_count,
            created_at=now,
            expires_at=None if ttl is None else now + ttl,
            user_metadata=getattr(self._request, "user_metadata", None),
            session_id=session.session_id,
            project_id=session.project_id,
            run_metadata=self._model.user_metadata,
        )


async def save_weights(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Save weights and optimizer state under a name; without one, under the request's number."""
    request = call.read(models.SaveWeightsRequest)
    with state.lock() as shared:
        return Save(state, shared, call, request, "weights").enqueue(
            lambda record: models.SaveWeightsResponse(path=record.path), overwrite=request.overwrite
        )


async def save_weights_for_sampler(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Save weights to sample from: under a name on disk, or as a sampling session."""
    request = call.read(models.SaveWeightsForSamplerRequest)
    with state.lock() as shared:
        if request.path is None and request.sampling_session_seq_id is not None:
            return _save_as_session(state, shared, call, request, request.sampling_session_seq_id)
        return Save(state, shared, call, request, "sampler_weights").enqueue(
            lambda record: models.SaveWeightsForSamplerResponseInternal(path=record.path)
        )


async def save_weights_external(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Save weights to download, as the engine writes them: PEFT's own files where torch trains."""
    request = call.read(models.SaveWeightsExternalRequest)
    with state.lock() as shared:
        return Save(state, shared, call, request, "external_weights").enqueue(
            lambda record: models.SaveWeightsExternalResponseInternal(
                path=record.path, size_bytes=record.nbytes
            )
        )


def _save_as_session(
    state: State,
    shared: SharedData,
    call: APICall,
    request: models.SaveWeightsForSamplerRequest,
    sampler_number: int,
) -> models.UntypedAPIFuture:
    model = shared.store.model(request.model_id)
    sampler = shared.store.new_sampler(
        model.session, sampler_number, model.base_model, model.engine_model
    )
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

    prepare = partial(shared.store.add_sampler, sampler_number, sampler)
    undo = partial(shared.store.drop_sampler, sampler)
    return enqueue_idempotent(
        state, call, model, number, fingerprint(request), run, prepare=prepare, undo=undo
    )


def _freeze(
    state: State, engine: Engine, model: ModelRecord, number: int, kind: str | None
) -> LoadWeights:
    """Keep the present weights for samples. Those of an inflight sampler need no copy on disk if
    the engine is the sampler.
    """
    is_kept, in_memory = state.journal.is_kept, state.served.find(model.engine_model).is_own_sampler
    if kind == "inflight" and in_memory and not is_kept:
        frozen = engine.snapshot(model.model_id)
        return lambda _: frozen
    return state.snapshots.save(
        engine, model.model_id, str(number) if is_kept else "", in_memory=in_memory
    )


async def load_weights(state: State, call: APICall) -> models.UntypedAPIFuture:
    """Load a checkpoint: into an existing model (by id), or into a new one (by
    session and number).
    """
    request = call.read(models.LoadWeightsRequest)
    if request.model_id is not None:
        return _load_into_model(state, call, request, request.model_id)
    if request.session_id is None or request.model_seq_id is None:
        raise APIProblem(
            422, "either model_id, or session_id together with model_seq_id, says where to load"
        )
    return await _load_into_new_model(
        state, call, request, request.session_id, request.model_seq_id
    )


def _describe_saved_model(
    state: State, engines: Sequence[Engine], request: models.LoadWeightsRequest
) -> NewModel:
    """Describe the new model, as far as it is known before the checkpoint is read."""
    asked = (
        None
        if request.base_model is None
        else choose_engine_for(state, engines, request.base_model)
    )
    name, engine_model, spec = _name_saved_model(state, request.path)
    if not engine_model or not any(engine.base_model == engine_model for engine in engines):
        engine_model = (engines[0] if asked is None else asked[0]).base_model
    return NewModel(
        base_model=asked[1] if asked is not None else name or engine_model,
        engine_model=engine_model,
        requested_name=request.base_model,
        spec=spec,
        optimizer=optimizer_family(request.optimizer_config),
        user_metadata=request.user_metadata,
    )


def _name_saved_model(state: State, path: str) -> tuple[str, str, AdapterSpec]:
    """Return the base model's name, its engine's name and the adapter's shape; empty names while
    they are unknown.

    The checkpoint may be saved by a request that still waits; the load itself says so if not.
    """
    try:
        record, _ = state.checkpoints.find(path, "weights")
    except EngineError:
        with state.lock() as shared:
            run = shared.store.find_model(path.removeprefix(SCHEME).partition("/")[0])
        return (
            ("", "", AdapterSpec()) if run is None else (run.base_model, run.engine_model, run.spec)
        )
    return record.base_model, record.engine_model, adapter_spec(record.lora_config)


def _load_checkpoint(
    state: State, engine: Engine, model: ModelRecord, request: models.LoadWeightsRequest
) -> None:
    """Load weights and the shape of the adapter, and with the optimizer's state its family where
    none is chosen yet.

    A run that begins with the optimizer's state counts its steps on from those of the run that was
    saved.
    """
    record, folder = state.checkpoints.find(request.path, "weights")
    if record.engine_model != engine.base_model:
        raise EngineError(
            f"{request.path} was trained on {record.engine_model!r}; this server has "
            f"{engine.base_model!r}"
        )
    if request.optimizer:
        if request.model_id is None and request.optimizer_config is None:
            model.optimizer = record.optimizer
        if model.optimizer != record.optimizer:
            fault = (
                f"{request.path} contains the state of the "
                f"optimizer {record.optimizer!r}, and this model's is"
            )
            raise EngineError(f"{fault} {model.optimizer!r}; load it without the optimizer")
    model.spec = engine.load(model.model_id, folder, optimizer=request.optimizer)
    with state.lock() as shared:
        if request.optimizer and not model.history.points:
            model.history.step_count = record.steps
        shared.audit.record_checkpoint("checkpoint_read", record, "train")


def _load_into_model(
    state: State, call: APICall, request: models.LoadWeightsRequest, model_id: str
) -> models.UntypedAPIFuture:
    """Queue the load of a checkpoint into an existing model."""

    def run(engine: Engine) -> models.LoadWeightsResponse:
        model.require_ready()
        _load_checkpoint(state, engine, model, request)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    def check_first() -> None:
        if state.settings.profile.loads_first_only and not model.queue.is_fresh:
            raise APIProblem(400, f"LoadWeights is not permitted with seq_id {number}")

    with state.lock() as shared:
        model = shared.store.model(model_id)
        number = model.queue.assign_number(request.seq_id)
        return enqueue_idempotent(
            state, call, model, number, _fingerprint_load(request), run, prepare=check_first
        )


async def _load_into_new_model(
    state: State, call: APICall, request: models.LoadWeightsRequest, session_id: str, number: int
) -> models.UntypedAPIFuture:
    """Create a model from a checkpoint; the same number and body again return the same future."""
    engines = await state.engines()

    def load(engine: Engine) -> models.LoadWeightsResponse:
        _load_checkpoint(state, engine, model, request)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    new = _describe_saved_model(state, engines, request)
    with state.lock() as shared, new.add(state, shared, session_id, number) as model:
        return enqueue_idempotent(
            state, call, model, 0, _fingerprint_load(request), partial(model.create, load)
        )


def _fingerprint_load(request: models.LoadWeightsRequest) -> bytes:
    """Compute the fingerprint without the token, which may be another one when the request is
    repeated.
    """
    return fingerprint(msgspec.structs.replace(request, weights_access_token=None))


async def list_checkpoints(state: State, call: APICall) -> models.CheckpointsListResponse:
    """Return those of one run, the newest first."""
    run = call.path["training_run_id"]
    records = await state.offload_always(lambda: state.checkpoints.list(run))
    with state.lock() as shared:
        if not records and shared.store.find_model(run) is None:
            raise make_not_found("training_run_not_found", run)
    return models.CheckpointsListResponse(
        checkpoints=[public_checkpoint(record) for record in records]
    )


async def list_user_checkpoints(state: State, call: APICall) -> models.CheckpointsListResponse:
    """Return a page of all, the newest first."""
    limit, offset = call.query_integer("limit", 100), call.query_integer("offset", 0)
    records = await state.offload_always(state.checkpoints.list)
    page = [public_checkpoint(record) for record in records[offset : offset + limit]]
    cursor = models.Cursor(offset=offset, limit=limit, total_count=len(records))
    return models.CheckpointsListResponse(checkpoints=page, cursor=cursor)


async def search_checkpoints(state: State, call: APICall) -> models.CheckpointSearchResponse:
    """Return a page of the checkpoints that meet every condition, the newest first. Raises
    APIProblem 422 for the limit.
    """
    request = call.read(models.CheckpointSearchRequest)
    if not MIN_RESULTS <= request.limit <= MAX_RESULTS:
        raise unprocessable("limit", f"{request.limit} must be {MIN_RESULTS} to {MAX_RESULTS}")
    records = await state.offload_always(state.checkpoints.list)
    found = sorted(
        (record for record in records if _matches(record, request)), key=_sort_key, reverse=True
    )
    if request.cursor is not None:
        last = request.cursor.last_created_at.timestamp(), request.cursor.last_checkpoint_uuid
        found = [record for record in found if _sort_key(record) < last]
    page, rest = found[: request.limit], found[request.limit :]
    return models.CheckpointSearchResponse(
        checkpoints=[public_checkpoint(record) for record in page],
        next_cursor=models.CheckpointSearchCursor(
            last_created_at=to_utc(page[-1].created_at), last_checkpoint_uuid=_sort_key(page[-1])[1]
        )
        if rest
        else None,
    )


def _matches(record: CheckpointRecord, request: models.CheckpointSearchRequest) -> bool:
    return (
        meets_conditions(request, record.project_id, record.user_metadata)
        and request.checkpoint_type in (None, public_checkpoint(record).checkpoint_type)
        and (request.base_models is None or record.base_model in request.base_models)
    )


def _sort_key(record: CheckpointRecord) -> tuple[float, str]:
    """Order by creation, as a cursor can express it."""
    return to_utc(record.created_at).timestamp(), str(uuid.uuid5(uuid.NAMESPACE_URL, record.path))


async def weights_info(state: State, call: APICall) -> models.WeightsInfoResponse:
    """Describe a checkpoint. Raises APIProblem 400 for a text that is not a path, 404 for an
    unknown checkpoint.
    """
    record = _find_checkpoint(state, call.read(models.WeightsInfoRequest).tinker_path)
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
        _drop_checkpoint(state, shared, _find_addressed(state, call))


async def publish_checkpoint(state: State, call: APICall) -> None:
    """Mark as public; 409 when it is already. This server has one user, so nothing else changes."""
    _set_public(state, call, True)


async def unpublish_checkpoint(state: State, call: APICall) -> None:
    """Mark as private; 409 when it is already."""
    _set_public(state, call, False)


def _set_public(state: State, call: APICall, public: bool) -> None:
    with state.lock() as shared:
        record = _find_addressed(state, call)
        if record.public == public:
            raise conflict(
                f"the checkpoint {record.path} is {'public' if public else 'private'} already"
            )
        state.checkpoints.update(record, public=public)
        shared.audit.record_checkpoint(
            "checkpoint_published" if public else "checkpoint_unpublished", record
        )


async def set_checkpoint_ttl(state: State, call: APICall) -> None:
    """Set the time to live, counted from now; null keeps the checkpoint forever."""
    seconds = call.read(models.SetCheckpointTtlRequest).ttl_seconds
    _check_ttl(seconds)
    with state.lock() as shared:
        record = _find_addressed(state, call)
        state.checkpoints.update(
            record, expires_at=None if seconds is None else state.now() + seconds
        )
        shared.audit.record_checkpoint("checkpoint_ttl_set", record, ttl_seconds=seconds)


async def copy_weights(state: State, call: APICall) -> models.CopyWeightsResponse:
    """Copy a checkpoint, with its kind and name, to a new run, which cannot be trained on. Files
    are shared on disk.
    """
    request = call.read(models.CopyWeightsRequest)
    _check_ttl(request.ttl_seconds)
    source = _find_checkpoint(state, request.source_path)
    with state.lock() as shared:
        run = _new_run(state, shared, request)
    record = msgspec.structs.replace(
        source,
        path=storage.checkpoint_path(run, source.kind, source.name),
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
        raise conflict(
            f"the training run {run!r} exists; choose another model_seq_id", "name_taken"
        )
    return run


async def get_external_weights_urls(
    state: State, call: APICall
) -> models.ExternalWeightsUrlsResponse:
    """Return a link to each file; they end after ``link_seconds``."""
    record = _find_addressed(state, call, "external_weights")
    urls = {
        name: state.links.checkpoint_url(call.base_url, "file", record, name)
        for name in state.checkpoints.files(record)
    }
    _record_download(state, record)
    return models.ExternalWeightsUrlsResponse(urls=urls, expires=state.links.expires_at())


async def get_checkpoint_archive(state: State, call: APICall) -> Response:
    """Redirect to a tar.gz of all files. A bare name means weights to sample from."""
    if "/" in call.path["checkpoint_id"]:
        record = _find_addressed(state, call, "weights", "sampler_weights")
    else:
        record = _require_checkpoint(
            state, call.path["training_run_id"], "sampler_weights", call.path["checkpoint_id"]
        )
    location = state.links.checkpoint_url(call.base_url, "archive", record, f"{record.name}.tar.gz")
    _record_download(state, record)
    return Response(
        None,
        302,
        {"location": location, "expires": format_datetime(state.links.expires_at(), usegmt=True)},
    )


def _record_download(state: State, record: CheckpointRecord) -> None:
    with state.lock() as shared:
        shared.audit.record_checkpoint("checkpoint_read", record, "download")


def _drop_checkpoint(state: State, shared: SharedData, record: CheckpointRecord) -> None:
    """Delete a checkpoint. Samplers that have its weights in memory keep working."""
    state.checkpoints.delete(record)
    shared.usage.record_deletion(record)
    shared.audit.record_checkpoint("checkpoint_deleted", record)


def _check_ttl(seconds: int | None) -> None:
    """Raise APIProblem 400 for a time to live that is out of range; None is forever."""
    if seconds is not None and not SHORTEST_TTL <= seconds <= LONGEST_TTL:
        raise APIProblem(
            400, f"ttl_seconds is {seconds}; it must be {SHORTEST_TTL} to {LONGEST_TTL}"
        )


def _find_checkpoint(state: State, path: str) -> CheckpointRecord:
    """Find the checkpoint of a tinker path of any kind. Raises APIProblem 400 for another text, 404
    when unknown.
    """
    try:
        ParsedCheckpointTinkerPath.from_tinker_path(path)
    except ValueError as error:
        raise APIProblem(400, str(error)) from error
    try:
        return state.checkpoints.find(path, *CHECKPOINT_KINDS)[0]
    except EngineError as error:
        raise APIProblem(404, str(error), code="checkpoint_not_found") from error


def _find_addressed(state: State, call: APICall, *kinds: CheckpointKind) -> CheckpointRecord:
    """Find the checkpoint in the URL. Raises APIProblem 400 for a wrong name, 404 when unknown, 425
    while it is written.
    """
    run, wanted = call.path["training_run_id"], call.path["checkpoint_id"]
    kind, _, name = wanted.rpartition("/")
    if kind not in (kinds or CHECKPOINT_KINDS):
        expected = " or ".join(f"'{kind}/<name>'" for kind in kinds or CHECKPOINT_KINDS)
        raise APIProblem(
            400,
            f"Invalid checkpoint identifier {wanted!r}. Expected {expected}, where "
            "<name> is one path segment.",
        )
    return _require_checkpoint(state, run, kind, name)


def _require_checkpoint(
    state: State, run: str, kind: CheckpointKind, name: str
) -> CheckpointRecord:
    """Return the checkpoint. Raises APIProblem 404 when it is unknown, 425 while it is written."""
    path = storage.checkpoint_path(run, kind, name)
    try:
        record = state.checkpoints.get(run, kind, name)
    except EngineError as error:
        raise APIProblem(404, str(error), code="checkpoint_not_found") from error
    if record is not None:
        return record
    with state.lock() as shared:
        model = shared.store.find_model(run)
        if model is not None and path in model.reserved_paths:
            raise APIProblem(
                425, f"the checkpoint {path} is still being written", {"retry-after": "1"}
            )
    raise make_not_found("checkpoint_not_found", path)


UPLOADED = "uploaded"  # the name of the checkpoint that an upload becomes


async def external_weights_upload_start(
    state: State, call: APICall
) -> models.ExternalWeightsUploadStartResult:
    """Return a link for each file of an adapter; they end after ``link_seconds``.

    Raises APIProblem 400 for an adapter that cannot be, 429 when too many uploads are under way.
    """
    request = call.read(models.ExternalWeightsUploadStartRequest)
    engine, base_model = choose_engine_for(state, await state.engines(), request.base_model)
    spec, seconds = adapter_spec(request.lora_config), state.settings.link_seconds
    check_spec(state, spec)
    if not (spec.train_attn or spec.train_mlp or spec.train_unembed):
        raise APIProblem(
            400,
            "lora_config trains nothing: one of train_attn, train_mlp and "
            "train_unembed must be true",
        )
    with state.lock() as shared:
        state.require_open()
        if not shared.uploads.has_room(state.settings.max_uploads):
            raise APIProblem(
                429,
                f"too many uploads are under way (max_uploads={state.settings.max_uploads})",
                {"retry-after": "10"},
            )
        upload = shared.uploads.open(
            base_model, engine, spec, request.destination_project_id, seconds
        )
    claims = {"what": "upload", "upload": upload.upload_id}
    urls = {
        name: state.links.url(call.base_url, {**claims, "file": name}, name)
        for name in sorted(upload.names)
    }
    return models.ExternalWeightsUploadStartResult(
        upload_id=upload.upload_id, urls=urls, expires=state.links.expires_at()
    )


async def external_weights_upload_finish(
    state: State, call: APICall
) -> models.ExternalWeightsUploadFinishResult:
    """Make a checkpoint to train from of the files that were sent; the same one each time."""
    upload = _find_open(state, call.read(models.ExternalWeightsUploadFinishRequest).upload_id)
    if upload.tinker_path is None:
        await state.run_in_engine(
            upload.engine_model, lambda engine: _import(state, upload, engine)
        )
    assert upload.tinker_path is not None
    return models.ExternalWeightsUploadFinishResult(tinker_path=upload.tinker_path)


def _find_open(state: State, upload_id: str) -> AdapterUpload:
    with state.lock() as shared:
        upload = shared.uploads.find(upload_id)
    if upload is None:
        raise make_not_found("upload_not_found", upload_id)
    if upload.tinker_path is None and (missing := upload.missing):
        raise APIProblem(400, f"files of the upload are missing: {', '.join(missing)}")
    return upload


def _import(state: State, upload: AdapterUpload, engine: Engine) -> None:
    """Write the checkpoint, unless another request did so meanwhile. In the engine's thread.

    Files that the engine refuses are of no use: the upload is forgotten.
    """
    if upload.tinker_path is not None:
        return
    try:
        record = state.checkpoints.write(
            _record_upload(state, upload, engine),
            lambda folder: engine.import_adapter(upload.folder, upload.spec, folder),
            overwrite=False,
        )
    except EngineError:
        with state.lock() as shared:
            shared.uploads.drop(upload)
        raise
    with state.lock() as shared:
        shared.uploads.finish(upload, record.path)
        shared.audit.record_checkpoint("checkpoint_created", record, "upload")


def _record_upload(state: State, upload: AdapterUpload, engine: Engine) -> CheckpointRecord:
    run = str(uuid.uuid4())
    return CheckpointRecord(
        path=storage.checkpoint_path(run, "weights", UPLOADED),
        training_run_id=run,
        kind="weights",
        name=UPLOADED,
        base_model=upload.base_model,
        engine_model=engine.base_model,
        lora_config=lora_config(upload.spec),
        created_at=state.now(),
        project_id=upload.project_id,
    )
