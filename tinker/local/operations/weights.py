"""Saves and loads of checkpoints, in the order of the model's requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.engines.protocol import AdapterSpec, Engine, EngineError
from tinker.local.errors import APIProblem, conflict
from tinker.local.naming import choose_engine_for
from tinker.local.operations.descriptions import check_ttl
from tinker.local.operations.models import NewModel, adapter_spec, creation_step, lora_config, optimizer_family
from tinker.local.operations.submission import enqueue_idempotent, fingerprint
from tinker.local.scheduling.steps import log
from tinker.local.state import SharedData, State
from tinker.local.storage.checkpoint_records import CheckpointKind, CheckpointRecord, check_name, checkpoint_path, name_conflict
from tinker.local.storage.sessions import ModelRecord
from tinker.types.paths import SCHEME

SaveRequest: TypeAlias = models.SaveWeightsRequest | models.SaveWeightsForSamplerRequest | models.SaveWeightsExternalRequest


class Save:
    """One save under a name, to be made and enqueued under one lock.

    The name is reserved when the request is accepted, so that a second one is refused at once. A save that is repeated because
    the server was killed may have written its checkpoint already.
    """

    def __init__(self, state: State, shared: SharedData, call: APICall, request: SaveRequest, kind: CheckpointKind) -> None:
        self._state, self._call, self._request = state, call, request
        self._kind: CheckpointKind = kind
        self._model = shared.store.model(request.model_id)
        self._number = self._model.queue.assign_number(request.seq_id)
        self._name = f"{self._number:06d}" if request.path is None else request.path
        self._path = checkpoint_path(self._model.model_id, kind, self._name)
        self._is_repeated = state.repeating is not None

    def enqueue(
        self, respond: Callable[[CheckpointRecord], msgspec.Struct], *, overwrite: bool = False
    ) -> models.UntypedAPIFuture:
        """Queue the save, whose result is what ``respond`` makes of the checkpoint."""

        def run(engine: Engine) -> msgspec.Struct:
            return respond(self._run(engine, overwrite=overwrite))

        prepare, same = self._check if overwrite else self._reserve, fingerprint(self._request)
        return enqueue_idempotent(
            self._state, self._call, self._model, self._number, same, run, prepare=prepare, undo=self._release
        )

    def _check(self) -> None:
        """Raise APIProblem 400 for what this server does not do, or a limit of the request that is out of range."""
        if isinstance(self._request, models.SaveWeightsExternalRequest) and self._request.age_encryption_recipients:
            raise APIProblem(400, "this server writes files as they are; leave age_encryption_recipients out")
        check_ttl(self._request.ttl_seconds)
        if self._keep_last is not None and self._keep_last < 1:
            raise APIProblem(400, f"keep_last is {self._keep_last}; it must be at least 1")

    @property
    def _keep_last(self) -> int | None:
        return None if isinstance(self._request, models.SaveWeightsExternalRequest) else self._request.keep_last

    def _reserve(self) -> None:
        """Reserve the name after :meth:`_check`. Raises APIProblem 409 when it is taken."""
        self._check()
        names = self._model.reserved_paths
        is_there = not self._is_repeated and self._state.checkpoints.exists(self._model.model_id, self._kind, self._name)
        if self._path in names or is_there:
            raise conflict(name_conflict(self._path), "name_taken")
        names.add(self._path)

    def _run(self, engine: Engine, *, overwrite: bool) -> CheckpointRecord:
        """Write the checkpoint."""
        try:
            self._model.require_ready()
            check_name(self._name)
            training = self._kind == "weights"
            record = self._state.checkpoints.write(
                self._record(engine),
                lambda folder: engine.save(self._model.model_id, folder, optimizer=training),
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
        same = [one for one in older if one.kind == self._kind and not one.public and one.path != record.path]
        with self._state.lock() as shared:
            shared.audit.record_checkpoint("checkpoint_created", record)
            shared.usage.count("checkpoint", 1, session.usage_key(record.base_model))
            for one in same[max(0, (keep or 1) - 1) :]:
                try:
                    drop_checkpoint(self._state, shared, one)
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


def drop_checkpoint(state: State, shared: SharedData, record: CheckpointRecord) -> None:
    """Delete a checkpoint. Samplers that have its weights in memory keep working."""
    state.checkpoints.delete(record)
    shared.usage.record_deletion(record)
    shared.audit.record_checkpoint("checkpoint_deleted", record)


def _describe_saved_model(state: State, engines: Sequence[Engine], request: models.LoadWeightsRequest) -> NewModel:
    """Describe the new model, as far as it is known before the checkpoint is read."""
    asked = None if request.base_model is None else choose_engine_for(state, engines, request.base_model)
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
    """Return the base model's name, its engine's name and the adapter's shape; empty names while they are unknown.

    The checkpoint may be saved by a request that still waits; the load itself says so if not.
    """
    try:
        record, _ = state.checkpoints.find(path, "weights")
    except EngineError:
        with state.lock() as shared:
            run = shared.store.find_model(path.removeprefix(SCHEME).partition("/")[0])
        return ("", "", AdapterSpec()) if run is None else (run.base_model, run.engine_model, run.spec)
    return record.base_model, record.engine_model, adapter_spec(record.lora_config)


def _load_checkpoint(state: State, engine: Engine, model: ModelRecord, request: models.LoadWeightsRequest) -> None:
    """Load weights and the shape of the adapter, and with the optimizer's state its family where none is chosen yet.

    A run that begins with the optimizer's state counts its steps on from those of the run that was saved.
    """
    record, folder = state.checkpoints.find(request.path, "weights")
    if record.engine_model != engine.base_model:
        raise EngineError(f"{request.path} was trained on {record.engine_model!r}; this server has {engine.base_model!r}")
    if request.optimizer:
        if request.model_id is None and request.optimizer_config is None:
            model.optimizer = record.optimizer
        if model.optimizer != record.optimizer:
            fault = f"{request.path} contains the state of the optimizer {record.optimizer!r}, and this model's is"
            raise EngineError(f"{fault} {model.optimizer!r}; load it without the optimizer")
    model.spec = engine.load(model.model_id, folder, optimizer=request.optimizer)
    with state.lock() as shared:
        if request.optimizer and not model.history.points:
            model.history.step_count = record.steps
        shared.audit.record_checkpoint("checkpoint_read", record, "train")


def load_into_model(state: State, call: APICall, request: models.LoadWeightsRequest, model_id: str) -> models.UntypedAPIFuture:
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
        return enqueue_idempotent(state, call, model, number, _fingerprint_load(request), run, prepare=check_first)


async def load_into_new_model(
    state: State, call: APICall, request: models.LoadWeightsRequest, session_id: str, number: int
) -> models.UntypedAPIFuture:
    """Create a model from a checkpoint; the same number and body again return the same future."""
    engines = await state.engines()

    def load(engine: Engine) -> models.LoadWeightsResponse:
        _load_checkpoint(state, engine, model, request)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    new = _describe_saved_model(state, engines, request)
    with state.lock() as shared, new.add(state, shared, session_id, number) as model:
        return enqueue_idempotent(state, call, model, 0, _fingerprint_load(request), creation_step(model, load))


def _fingerprint_load(request: models.LoadWeightsRequest) -> bytes:
    """Compute the fingerprint without the token, which may be another one when the request is repeated."""
    return fingerprint(msgspec.structs.replace(request, weights_access_token=None))
