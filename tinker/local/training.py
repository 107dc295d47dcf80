"""Handlers of models: create, describe, unload. All but the description run in the order of the model's requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
from tinker_wire import models

from tinker.local.accept import accept, fingerprint
from tinker.local.call import Call
from tinker.local.engines import why_absent
from tinker.local.engines.protocol import AdapterSpec, Engine
from tinker.local.optimizer import optimizer_config, optimizer_family
from tinker.local.problem import Problem
from tinker.local.state import State
from tinker.local.store import Model, Session


async def create_model(state: State, call: Call) -> models.UntypedAPIFuture:
    """A fresh adapter under ``<session>:train:<n>``; the same number and body again answer the same future."""
    request = call.read(models.CreateModelRequest)
    check_base_model(state, await state.engine(), request.base_model)
    optimizer = optimizer_family(request.optimizer_config)
    spec = adapter_spec(request.lora_config)
    new = NewModel(base_model=request.base_model, spec=spec, optimizer=optimizer, user_metadata=request.user_metadata)
    with state.lock:
        model = new.add(state, request.session_id, request.model_seq_id)
        work = creation(model, lambda engine: engine.create_adapter(model.model_id, spec))
        return accept(state, call.name, model, 0, fingerprint(request), lambda engine: _created(model, work, engine))


def _created(model: Model, work: Callable[[Engine], None], engine: Engine) -> models.CreateModelResponse:
    work(engine)
    return models.CreateModelResponse(model_id=model.model_id)


@attrs.frozen(kw_only=True)
class NewModel:
    """What a model will be."""

    base_model: str
    spec: AdapterSpec
    optimizer: str
    user_metadata: models.Metadata | None

    def add(self, state: State, session_id: str, number: int) -> Model:
        """The model of that number, new or as it is. Call with the state's lock held."""
        state.require_open()
        session = state.store.live_session(session_id)
        return state.store.add_model(session, number, lambda model_id: self._make(state, session, model_id))

    def _make(self, state: State, session: Session, model_id: str) -> Model:
        return Model(
            model_id=model_id,
            session=session,
            base_model=self.base_model,
            spec=self.spec,
            lane=state.new_lane(),
            last_request_at=state.now(),
            optimizer=self.optimizer,
            user_metadata=self.user_metadata,
        )


def creation(model: Model, make: Callable[[Engine], object]) -> Callable[[Engine], None]:
    """Makes the model, and notes on it when that fails, so that its later requests can say why they fail."""

    def run(engine: Engine) -> None:
        try:
            make(engine)
        except Exception as error:
            model.broken = str(error)
            raise

    return run


def check_base_model(state: State, engine: Engine, name: str) -> None:
    """Problem 400 unless the loaded model goes by that name here."""
    if name != engine.base_model and not state.settings.any_base_model:
        raise Problem(400, f"base model {name!r} is not offered; this server has {engine.base_model!r}{why_absent(name)}")


def adapter_spec(config: models.LoraConfig | None) -> AdapterSpec:
    """What the engine is asked for; without a configuration its defaults."""
    if config is None:
        return AdapterSpec()
    return AdapterSpec(
        rank=config.rank,
        seed=config.seed,
        train_unembed=config.train_unembed,
        train_mlp=config.train_mlp,
        train_attn=config.train_attn,
    )


def lora_config(spec: AdapterSpec) -> models.LoraConfig:
    """The inverse of :func:`adapter_spec`."""
    return models.LoraConfig(**attrs.asdict(spec))


async def get_info(state: State, call: Call) -> models.GetInfoResponse:
    """What a model is; also right after its creation was submitted."""
    request = call.read(models.GetInfoRequest)
    engine = await state.engine()
    with state.lock:
        model = state.store.model(request.model_id)
    if model.broken is not None:
        raise Problem(400, f"model {model.model_id!r} was not created: {model.broken}")
    return models.GetInfoResponse(
        model_id=model.model_id,
        model_data=models.ModelData(model_name=model.base_model, tokenizer_id=_wire_tokenizer(engine.tokenizer_id)),
        optimizer_config=optimizer_config(model.optimizer),
        is_lora=True,
        lora_rank=model.spec.rank,
        model_name=model.base_model,
    )


def _wire_tokenizer(tokenizer_id: str) -> str | None:
    """None for a directory with a ``:`` in its path: clients would cut it there and find something else or nothing."""
    return None if ":" in tokenizer_id and Path(tokenizer_id).exists() else tokenizer_id


async def unload_model(state: State, call: Call) -> models.UntypedAPIFuture:
    """Frees a model once what was submitted for it has run; its checkpoints stay, and later requests are refused."""
    request = call.read(models.UnloadModelRequest)

    def run(engine: Engine) -> models.UnloadModelResponse:
        engine.drop_adapter(model.model_id)
        return models.UnloadModelResponse(model_id=model.model_id)

    with state.lock:
        model = state.store.model(request.model_id)
        answer = accept(state, call.name, model, model.lane.number(None), fingerprint(request), run)
        state.store.close_model(model, "was unloaded")
        return answer
