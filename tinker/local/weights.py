"""Handlers of checkpoints: save to train on, save to sample from, load. All run in the order of the model's requests."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from tinker_wire import models

from tinker.local.accept import accept, fingerprint
from tinker.local.call import Call
from tinker.local.checkpoints import CheckpointRecord, Kind, check_name, checkpoint_path, taken
from tinker.local.engines.protocol import AdapterSpec, Engine, EngineError
from tinker.local.problem import Problem, exists
from tinker.local.state import State
from tinker.local.store import Model, Sampler, sampler_id
from tinker.local.training import adapter_spec, add_model, check_base_model, check_optimizer, creation, lora_config

# Saving


async def save_weights(state: State, call: Call) -> models.UntypedAPIFuture:
    """Weights and optimizer state under a name; without one, under the request's number."""
    request = call.read(models.SaveWeightsRequest)
    with state.lock:
        model = state.store.model(request.model_id)
        number = model.lane.number(request.seq_id)
        name = f"{number:06d}" if request.path is None else request.path
        save = _Save(state, model, "weights", name, request)

        def run(engine: Engine) -> models.SaveWeightsResponse:
            return models.SaveWeightsResponse(path=save.run(engine, overwrite=request.overwrite))

        prepare = None if request.overwrite else save.reserve
        return accept(state, model, number, fingerprint(request), run, prepare=prepare)


async def save_weights_for_sampler(state: State, call: Call) -> models.UntypedAPIFuture:
    """Weights to sample from: under a name on disk, or in memory as a sampling session."""
    request = call.read(models.SaveWeightsForSamplerRequest)
    with state.lock:
        model = state.store.model(request.model_id)
        number = model.lane.number(request.seq_id)
        if request.path is None and request.sampling_session_seq_id is not None:
            return _save_into_session(state, model, number, request, request.sampling_session_seq_id)
        name = f"{number:06d}" if request.path is None else request.path
        save = _Save(state, model, "sampler_weights", name, request)

        def run(engine: Engine) -> models.SaveWeightsForSamplerResponseInternal:
            return models.SaveWeightsForSamplerResponseInternal(path=save.run(engine, overwrite=False))

        return accept(state, model, number, fingerprint(request), run, prepare=save.reserve)


class _Save:
    """One save under a name. The name is reserved when the request is accepted, so that a second one is refused at once."""

    def __init__(
        self,
        state: State,
        model: Model,
        kind: Kind,
        name: str,
        request: models.SaveWeightsRequest | models.SaveWeightsForSamplerRequest,
    ) -> None:
        self._state, self._model, self._request = state, model, request
        self._kind: Kind = kind
        self._name = name
        self._path = checkpoint_path(model.model_id, kind, name)

    def reserve(self) -> None:
        """Problem 409 when the name is taken."""
        names = self._model.names
        if self._path in names or self._state.checkpoints.exists(self._model.model_id, self._kind, self._name):
            raise exists(taken(self._path))
        names.add(self._path)

    def run(self, engine: Engine, *, overwrite: bool) -> str:
        """Write the checkpoint and return its path."""
        model = self._model
        try:
            model.require_made()
            check_name(self._name)
            training = self._kind == "weights"
            self._state.checkpoints.write(
                self._record(engine),
                lambda folder: engine.save(model.model_id, folder, optimizer=training),
                overwrite=overwrite,
            )
        finally:
            with self._state.lock:
                model.names.discard(self._path)
        return self._path

    def _record(self, engine: Engine) -> CheckpointRecord:
        now, ttl = self._state.now(), self._request.ttl_seconds
        return CheckpointRecord(
            path=self._path,
            training_run_id=self._model.model_id,
            kind=self._kind,
            name=self._name,
            base_model=self._model.base_model,
            engine_model=engine.base_model,
            lora_config=lora_config(self._model.spec),
            created_at=now,
            expires_at=None if ttl is None else now + ttl,
            user_metadata=self._request.user_metadata,
        )


def _save_into_session(
    state: State, model: Model, number: int, request: models.SaveWeightsForSamplerRequest, sampler_number: int
) -> models.UntypedAPIFuture:
    session = model.session
    sampler = Sampler(sampler_id=sampler_id(session.session_id, sampler_number), session=session, base_model=model.base_model)

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
                session.samplers.pop(sampler_number, None)
            raise
        return models.SaveWeightsForSamplerResponseInternal(sampling_session_id=sampler.sampler_id)

    prepare: Callable[[], None] = lambda: state.store.add_sampler(session, sampler_number, sampler)  # noqa: E731
    return accept(state, model, number, fingerprint(request), run, prepare=prepare)


# Loading


async def load_weights(state: State, call: Call) -> models.UntypedAPIFuture:
    """A checkpoint into a model: into one that exists (by id), or into a new one (by session and number)."""
    request = call.read(models.LoadWeightsRequest)
    if request.model_id is not None:
        return _load_into(state, request, request.model_id)
    if request.session_id is None or request.model_seq_id is None:
        raise Problem(422, "either model_id, or session_id together with model_seq_id, says where to load")
    return await _create_from(state, request, request.session_id, request.model_seq_id)


def _load_into(state: State, request: models.LoadWeightsRequest, model_id: str) -> models.UntypedAPIFuture:
    def run(engine: Engine) -> models.LoadWeightsResponse:
        model.require_made()
        model.spec = _load(state, engine, model, request)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    with state.lock:
        model = state.store.model(model_id)
        same = fingerprint(msgspec.structs.replace(request, weights_access_token=None))
        return accept(state, model, model.lane.number(request.seq_id), same, run)


async def _create_from(
    state: State, request: models.LoadWeightsRequest, session_id: str, number: int
) -> models.UntypedAPIFuture:
    engine = await state.engine()
    check_optimizer(request.optimizer_config)
    if request.base_model is not None:
        check_base_model(state, engine, request.base_model)

    def run(engine: Engine) -> models.LoadWeightsResponse:
        work(engine)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    def make(engine: Engine) -> None:
        model.spec = _load(state, engine, model, request)

    name, spec = _saved_as(state, engine, request)
    with state.lock:
        model = add_model(state, session_id, number, name, spec, request.user_metadata)
        work = creation(model, make)
        same = fingerprint(msgspec.structs.replace(request, weights_access_token=None))
        return accept(state, model, 0, same, run)


def _saved_as(state: State, engine: Engine, request: models.LoadWeightsRequest) -> tuple[str, AdapterSpec]:
    """The base model's name and the shape of the adapter, as far as they are known before the checkpoint is read."""
    try:
        record, _ = state.checkpoints.find(request.path, "weights")
    except EngineError:  # it may be saved by a request that still waits; the load itself says so if not
        return request.base_model or engine.base_model, AdapterSpec()
    return request.base_model or record.base_model, adapter_spec(record.lora_config)


def _load(state: State, engine: Engine, model: Model, request: models.LoadWeightsRequest) -> AdapterSpec:
    record, folder = state.checkpoints.find(request.path, "weights")
    if record.engine_model != engine.base_model:
        raise EngineError(f"{request.path} was trained on {record.engine_model!r}; this server has {engine.base_model!r}")
    return engine.load(model.model_id, folder, optimizer=request.optimizer)
