"""Handlers of weights: save to train on, to sample from, to download; load. All run in the order of the model's requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import attrs
import msgspec
from tinker_wire import models

from tinker.local.accept import accept, fingerprint
from tinker.local.call import Call
from tinker.local.catalog import check_ttl
from tinker.local.checkpoints import CheckpointRecord, Kind, check_name, checkpoint_path, taken
from tinker.local.engines.protocol import AdapterSpec, Engine, EngineError
from tinker.local.naming import check_base_model
from tinker.local.optimizer import optimizer_family
from tinker.local.problem import Problem, exists
from tinker.local.state import State
from tinker.local.store import Model
from tinker.local.training import NewModel, adapter_spec, creation, lora_config

# Saving


async def save_weights(state: State, call: Call) -> models.UntypedAPIFuture:
    """Weights and optimizer state under a name; without one, under the request's number."""
    request = call.read(models.SaveWeightsRequest)
    with state.lock:
        save = _Save.of(state, call, request, "weights")

        def run(engine: Engine) -> models.SaveWeightsResponse:
            return models.SaveWeightsResponse(path=save.run(engine, overwrite=request.overwrite).path)

        return save.accepted(run, save.check if request.overwrite else save.reserve)


async def save_weights_for_sampler(state: State, call: Call) -> models.UntypedAPIFuture:
    """Weights to sample from: under a name on disk, or as a sampling session."""
    request = call.read(models.SaveWeightsForSamplerRequest)
    with state.lock:
        if request.path is None and request.sampling_session_seq_id is not None:
            return _save_into_session(state, call, request, request.sampling_session_seq_id)
        save = _Save.of(state, call, request, "sampler_weights")

        def run(engine: Engine) -> models.SaveWeightsForSamplerResponseInternal:
            return models.SaveWeightsForSamplerResponseInternal(path=save.run(engine, overwrite=False).path)

        return save.accepted(run, save.reserve)


async def save_weights_external(state: State, call: Call) -> models.UntypedAPIFuture:
    """Weights to download, as the engine writes them: PEFT's own files where torch trains."""
    request = call.read(models.SaveWeightsExternalRequest)

    def prepare() -> None:
        if request.age_encryption_recipients:
            raise Problem(400, "this server writes files as they are; leave age_encryption_recipients out")
        save.reserve()

    with state.lock:
        save = _Save.of(state, call, request, "external_weights")

        def run(engine: Engine) -> models.SaveWeightsExternalResponseInternal:
            record = save.run(engine, overwrite=False)
            return models.SaveWeightsExternalResponseInternal(path=record.path, size_bytes=record.nbytes)

        return save.accepted(run, prepare)


class SaveRequest(Protocol):
    """What the requests to save have in common."""

    @property
    def model_id(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def seq_id(self) -> int | None: ...
    @property
    def ttl_seconds(self) -> int | None: ...


@attrs.frozen(eq=False, kw_only=True)
class _Save:
    """One save under a name. The name is reserved when the request is accepted, so that a second one is refused at once."""

    state: State
    call: Call
    request: SaveRequest
    kind: Kind
    model: Model
    number: int
    name: str

    @classmethod
    def of(cls, state: State, call: Call, request: SaveRequest, kind: Kind) -> _Save:
        """Call with the state's lock held, which is held until it is accepted."""
        model = state.store.model(request.model_id)
        number = model.lane.number(request.seq_id)
        name = f"{number:06d}" if request.path is None else request.path
        return cls(state=state, call=call, request=request, kind=kind, model=model, number=number, name=name)

    @property
    def path(self) -> str:
        return checkpoint_path(self.model.model_id, self.kind, self.name)

    def accepted(self, run: Callable[[Engine], msgspec.Struct], prepare: Callable[[], None]) -> models.UntypedAPIFuture:
        same = fingerprint(cast("msgspec.Struct", self.request))
        return accept(self.state, self.call.name, self.model, self.number, same, run, prepare=prepare)

    def check(self) -> None:
        """Problem 400 for a time to live that is not possible."""
        check_ttl(self.request.ttl_seconds)

    def reserve(self) -> None:
        """As :meth:`check`, and Problem 409 when the name is taken."""
        self.check()
        names = self.model.names
        if self.path in names or self.state.checkpoints.exists(self.model.model_id, self.kind, self.name):
            raise exists(taken(self.path))
        names.add(self.path)

    def run(self, engine: Engine, *, overwrite: bool) -> CheckpointRecord:
        """Write the checkpoint."""
        try:
            self.model.require_made()
            check_name(self.name)
            training = self.kind == "weights"
            record = self.state.checkpoints.write(
                self._record(engine),
                lambda folder: engine.save(self.model.model_id, folder, optimizer=training),
                overwrite=overwrite,
            )
        finally:
            with self.state.lock:
                self.model.names.discard(self.path)
        self._note(record)
        return record

    def _note(self, record: CheckpointRecord) -> None:
        session = self.model.session
        with self.state.lock:
            self.state.ledger.note_checkpoint("checkpoint_created", record)
            self.state.ledger.use("checkpoint", 1, (session.project_id, session.session_id, record.base_model))

    def _record(self, engine: Engine) -> CheckpointRecord:
        now, ttl, session = self.state.now(), self.request.ttl_seconds, self.model.session
        return CheckpointRecord(
            path=self.path,
            training_run_id=self.model.model_id,
            kind=self.kind,
            name=self.name,
            base_model=self.model.base_model,
            engine_model=engine.base_model,
            lora_config=lora_config(self.model.spec),
            optimizer=self.model.optimizer,
            created_at=now,
            expires_at=None if ttl is None else now + ttl,
            user_metadata=getattr(self.request, "user_metadata", None),
            session_id=session.session_id,
            project_id=session.project_id,
            run_metadata=self.model.user_metadata,
        )


def _save_into_session(
    state: State, call: Call, request: models.SaveWeightsForSamplerRequest, sampler_number: int
) -> models.UntypedAPIFuture:
    model = state.store.model(request.model_id)
    sampler = state.store.new_sampler(model.session, sampler_number, model.base_model, None, None)
    sampler.asked_as = model.asked_as

    def run(engine: Engine) -> models.SaveWeightsForSamplerResponseInternal:
        try:
            model.require_made()
            if request.kind == "inflight":
                model.inflight = engine.snapshot(model.model_id)
                sampler.weights = model.inflight_weights
            else:
                sampler.weights = state.snapshots.save(engine, model.model_id)
        except Exception:
            with state.lock:
                state.store.drop_sampler(sampler)
            raise
        return models.SaveWeightsForSamplerResponseInternal(sampling_session_id=sampler.sampler_id)

    prepare: Callable[[], None] = lambda: state.store.add_sampler(sampler_number, sampler)  # noqa: E731
    number = model.lane.number(request.seq_id)
    return accept(state, call.name, model, number, fingerprint(request), run, prepare=prepare)


# Loading


async def load_weights(state: State, call: Call) -> models.UntypedAPIFuture:
    """A checkpoint into a model: into one that exists (by id), or into a new one (by session and number)."""
    request = call.read(models.LoadWeightsRequest)
    if request.model_id is not None:
        return _load_into(state, call, request, request.model_id)
    if request.session_id is None or request.model_seq_id is None:
        raise Problem(422, "either model_id, or session_id together with model_seq_id, says where to load")
    return await _create_from(state, call, request, request.session_id, request.model_seq_id)


def _load_into(state: State, call: Call, request: models.LoadWeightsRequest, model_id: str) -> models.UntypedAPIFuture:
    def run(engine: Engine) -> models.LoadWeightsResponse:
        model.require_made()
        _load(state, engine, model, request)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    def check_first() -> None:
        if state.settings.profile.loads_first_only and not model.lane.is_fresh:
            raise Problem(400, f"LoadWeights is not permitted with seq_id {number}")

    with state.lock:
        model = state.store.model(model_id)
        number = model.lane.number(request.seq_id)
        same = fingerprint(msgspec.structs.replace(request, weights_access_token=None))
        return accept(state, call.name, model, number, same, run, prepare=check_first)


async def _create_from(
    state: State, call: Call, request: models.LoadWeightsRequest, session_id: str, number: int
) -> models.UntypedAPIFuture:
    engine = await state.engine()

    def run(engine: Engine) -> models.LoadWeightsResponse:
        work(engine)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    new = _saved_as(state, engine, request)
    with state.lock:
        model = new.add(state, session_id, number)
        work = creation(model, lambda engine: _load(state, engine, model, request))
        same = fingerprint(msgspec.structs.replace(request, weights_access_token=None))
        return accept(state, call.name, model, 0, same, run)


def _saved_as(state: State, engine: Engine, request: models.LoadWeightsRequest) -> NewModel:
    """What the model will be, as far as it is known before the checkpoint is read."""
    asked = None if request.base_model is None else check_base_model(state, engine, request.base_model)
    name, spec = engine.base_model, AdapterSpec()
    try:
        record, _ = state.checkpoints.find(request.path, "weights")
        name, spec = record.base_model, adapter_spec(record.lora_config)
    except EngineError:
        pass  # it may be saved by a request that still waits; the load itself says so if not
    return NewModel(
        base_model=asked or name,
        asked_as=request.base_model,
        spec=spec,
        optimizer=optimizer_family(request.optimizer_config),
        user_metadata=request.user_metadata,
    )


def _load(state: State, engine: Engine, model: Model, request: models.LoadWeightsRequest) -> None:
    """The weights, the shape of the adapter, and with the optimizer's state its family, where that is not chosen yet."""
    record, folder = state.checkpoints.find(request.path, "weights")
    if record.engine_model != engine.base_model:
        raise EngineError(f"{request.path} was trained on {record.engine_model!r}; this server has {engine.base_model!r}")
    if request.optimizer:
        if request.model_id is None and request.optimizer_config is None:
            model.optimizer = record.optimizer
        if model.optimizer != record.optimizer:
            fault = f"{request.path} holds the state of the optimizer {record.optimizer!r}, and this model's is"
            raise EngineError(f"{fault} {model.optimizer!r}; load it without the optimizer")
    model.spec = engine.load(model.model_id, folder, optimizer=request.optimizer)
    with state.lock:
        state.ledger.note_checkpoint("checkpoint_read", record, "train")
