"""Loads: a checkpoint's weights, and with them the shape of the adapter and the family of the optimizer."""

from __future__ import annotations

from tinker_wire import models

from tinker.local.engines import AdapterSpec, Engine, EngineError
from tinker.local.naming import check_base_model
from tinker.local.operations.creation import NewModel, adapter_spec
from tinker.local.operations.optimizers import optimizer_family
from tinker.local.state import State
from tinker.local.storage import ModelRecord


def describe_saved_model(state: State, engine: Engine, request: models.LoadWeightsRequest) -> NewModel:
    """Describe the new model, as far as it is known before the checkpoint is read."""
    asked = None if request.base_model is None else check_base_model(state, engine, request.base_model)
    name, spec = engine.base_model, AdapterSpec()
    try:
        record, _ = state.checkpoints.find(request.path, "weights")
        name, spec = record.base_model, adapter_spec(record.lora_config)
    except EngineError:
        pass  # it may be saved by a request that still waits; the load itself says so if not
    return NewModel(
        base_model=asked or name,
        requested_name=request.base_model,
        spec=spec,
        optimizer=optimizer_family(request.optimizer_config),
        user_metadata=request.user_metadata,
    )


def load_checkpoint(state: State, engine: Engine, model: ModelRecord, request: models.LoadWeightsRequest) -> None:
    """Load weights and the shape of the adapter, and with the optimizer's state its family where none is chosen yet."""
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
        state.audit.record_checkpoint("checkpoint_read", record, "train")
