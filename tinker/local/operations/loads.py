"""Loads: a checkpoint's weights, and with them the shape of the adapter and the family of the optimizer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from tinker_wire import models

from tinker.local.call import APICall
from tinker.local.engines import AdapterSpec, Engine, EngineError
from tinker.local.errors import APIProblem
from tinker.local.naming import choose_engine_for
from tinker.local.operations.creation import NewModel, adapter_spec, creation_step
from tinker.local.operations.optimizers import optimizer_family
from tinker.local.scheduling.idempotency import enqueue_idempotent, fingerprint
from tinker.local.state import State
from tinker.local.storage.sessions import ModelRecord
from tinker.types.paths import SCHEME


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
    """Return the base model's name, what its engine goes by, and the shape of the adapter; empty names while nobody can say.

    The checkpoint may be saved by a request that still waits; the load itself says so if not.
    """
    try:
        record, _ = state.checkpoints.find(path, "weights")
    except EngineError:
        with state.lock:
            run = state.store.find_model(path.removeprefix(SCHEME).partition("/")[0])
        return ("", "", AdapterSpec()) if run is None else (run.base_model, run.engine_model, run.spec)
    return record.base_model, record.engine_model, adapter_spec(record.lora_config)


def _load_checkpoint(state: State, engine: Engine, model: ModelRecord, request: models.LoadWeightsRequest) -> None:
    """Load weights and the shape of the adapter, and with the optimizer's state its family where none is chosen yet."""
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
    with state.lock:
        state.audit.record_checkpoint("checkpoint_read", record, "train")


def load_into_model(state: State, call: APICall, request: models.LoadWeightsRequest, model_id: str) -> models.UntypedAPIFuture:
    """Queue the load of a checkpoint into an existing model."""

    def run(engine: Engine) -> models.LoadWeightsResponse:
        model.require_ready()
        _load_checkpoint(state, engine, model, request)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    def check_first() -> None:
        if state.settings.profile.loads_first_only and not model.queue.is_fresh:
            raise APIProblem(400, f"LoadWeights is not permitted with seq_id {number}")

    with state.lock:
        model = state.store.model(model_id)
        number = model.queue.assign_number(request.seq_id)
        return enqueue_idempotent(state, call, model, number, _fingerprint_load(request), run, prepare=check_first)


async def load_into_new_model(
    state: State, call: APICall, request: models.LoadWeightsRequest, session_id: str, number: int
) -> models.UntypedAPIFuture:
    """Create a model from a checkpoint; the same number and body again return the same future."""
    engines = await state.engines()

    def run(engine: Engine) -> models.LoadWeightsResponse:
        work(engine)
        return models.LoadWeightsResponse(path=request.path, model_id=model.model_id)

    new = _describe_saved_model(state, engines, request)
    with state.lock, new.add(state, session_id, number) as model:
        work = creation_step(model, lambda engine: _load_checkpoint(state, engine, model, request))
        return enqueue_idempotent(state, call, model, 0, _fingerprint_load(request), run)


def _fingerprint_load(request: models.LoadWeightsRequest) -> bytes:
    """Compute the fingerprint without the token, which may be another one when the request is repeated."""
    return fingerprint(msgspec.structs.replace(request, weights_access_token=None))
