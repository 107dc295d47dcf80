"""Handlers of models: create, describe, compute losses, step the optimizer. All but the description run in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import attrs
import msgspec
import numpy as np
from tinker_wire import models

from tinker._wire import json, proto
from tinker.local.accept import accept, call_fingerprint, fingerprint
from tinker.local.call import Call
from tinker.local.engines.protocol import Adam, AdapterSpec, Engine, EngineError, Example, Int32, LossResult
from tinker.local.problem import Problem
from tinker.local.state import State
from tinker.local.store import Model, Session
from tinker.types.datum import Datum
from tinker.types.model_input import EncodedTextChunk, ModelInput
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

T = TypeVar("T", bound=msgspec.Struct)

OUTPUT_TYPE = "ArrayRecord"


# Models


async def create_model(state: State, call: Call) -> models.UntypedAPIFuture:
    """A fresh adapter under ``<session>:train:<n>``; the same number and body again answer the same future."""
    request = call.read(models.CreateModelRequest)
    check_base_model(state, await state.engine(), request.base_model)
    check_optimizer(request.optimizer_config)
    spec = adapter_spec(request.lora_config)
    with state.lock:
        model = add_model(state, request.session_id, request.model_seq_id, request.base_model, spec, request.user_metadata)
        work = creation(model, lambda engine: engine.create_adapter(model.model_id, spec))
        return accept(state, model, 0, fingerprint(request), lambda engine: _created(model, work, engine))


def _created(model: Model, work: Callable[[Engine], None], engine: Engine) -> models.CreateModelResponse:
    work(engine)
    return models.CreateModelResponse(model_id=model.model_id)


def add_model(
    state: State,
    session_id: str,
    number: int,
    base_model: str,
    spec: AdapterSpec,
    user_metadata: models.Metadata | None,
) -> Model:
    """The model of that number, new or as it is. Call with the state's lock held."""

    def make(model_id: str, session: Session) -> Model:
        return Model(
            model_id=model_id,
            session=session,
            base_model=base_model,
            spec=spec,
            lane=state.new_lane(),
            user_metadata=user_metadata,
        )

    state.require_open()
    session = state.store.live_session(session_id)
    return state.store.add_model(session, number, lambda model_id: make(model_id, session))


def creation(model: Model, make: Callable[[Engine], object]) -> Callable[[Engine], None]:
    """Makes the model, and notes on it when that fails, so that its later requests can say why they fail."""

    def run(engine: Engine) -> None:
        try:
            make(engine)
        except Exception as error:
            model.failure = str(error)
            raise

    return run


def check_base_model(state: State, engine: Engine, name: str) -> None:
    """Problem 400 unless the loaded model goes by that name here."""
    if name != engine.base_model and not state.settings.any_base_model:
        raise Problem(400, f"base model {name!r} is not offered; this server has {engine.base_model!r}")


def check_optimizer(config: models.OptimizerConfig | None) -> None:
    """Problem 400 for a family other than AdamW."""
    if config is not None and not isinstance(config, models.AdamOptimizerConfig):
        raise Problem(400, f"optimizer {_family(config)!r} is not offered; this server has 'adamw'")


def _family(optimizer: models.OptimizerConfig | models.OptimizerParams) -> object:
    """The name of an optimizer family; those that the contract does not know are dictionaries."""
    return optimizer.get("type") if isinstance(optimizer, dict) else optimizer.type


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
    if model.failure is not None:
        raise Problem(400, f"model {model.model_id!r} was not created: {model.failure}")
    return models.GetInfoResponse(
        model_id=model.model_id,
        model_data=models.ModelData(model_name=model.base_model, tokenizer_id=_wire_tokenizer(engine.tokenizer_id)),
        optimizer_config=models.AdamOptimizerConfig(),
        is_lora=True,
        lora_rank=model.spec.rank,
        model_name=model.base_model,
    )


def _wire_tokenizer(tokenizer_id: str) -> str | None:
    """None for a directory with a ``:`` in its path: clients would cut it there and find something else or nothing."""
    return None if ":" in tokenizer_id and Path(tokenizer_id).exists() else tokenizer_id


# Losses


async def forward_backward(state: State, call: Call) -> models.UntypedAPIFuture:
    """A loss and its gradient, or the loss alone where a protobuf body says so."""
    if call.is_proto:
        return await _forward_backward_proto(state, call)
    request, same = await _read(state, call, models.ForwardBackwardRequest)
    return _accept_loss(state, request.model_id, request.seq_id, request.forward_backward_input, same, backward=True)


async def forward(state: State, call: Call) -> models.UntypedAPIFuture:
    """A loss alone."""
    request, same = await _read(state, call, models.ForwardRequest)
    return _accept_loss(state, request.model_id, request.seq_id, request.forward_input, same, backward=False)


async def _read(state: State, call: Call, kind: type[T]) -> tuple[T, bytes]:
    """The body and its fingerprint."""

    def read() -> tuple[T, bytes]:
        request = call.read(kind)
        return request, fingerprint(request)

    return await state.offload(len(call.content), read)


async def _forward_backward_proto(state: State, call: Call) -> models.UntypedAPIFuture:
    def read() -> tuple[proto.ForwardBackwardCall, bytes]:
        request = proto.decode_forward_backward(call.content)
        return request, call_fingerprint(request)

    try:
        request, same = await state.offload(len(call.content), read)
    except proto.ProtoError as error:
        raise Problem(422, f"the body is not a ForwardBackwardRequest: {error}") from error
    with state.lock:
        model = state.store.model(request.model_id)
        number = model.lane.number(request.seq_id)
        return accept(
            state,
            model,
            number,
            same,
            lambda engine: _loss(
                engine,
                model,
                request.data,
                request.loss_fn,
                request.loss_fn_config,
                backward=not request.forward_only,
            ),
        )


def _accept_loss(
    state: State, model_id: str, seq_id: int | None, what: models.ForwardBackwardInput, same: bytes, *, backward: bool
) -> models.UntypedAPIFuture:
    def run(engine: Engine) -> ForwardBackwardOutput:
        data = [_public(index, datum) for index, datum in enumerate(what.data)]
        return _loss(engine, model, data, what.loss_fn, what.loss_fn_config or {}, backward=backward)

    with state.lock:
        model = state.store.model(model_id)
        return accept(state, model, model.lane.number(seq_id), same, run)


def _public(index: int, datum: models.Datum) -> Datum:
    try:
        return json.public_datum(datum)
    except ValueError as error:
        raise EngineError(f"datum {index}: {error}") from error


def _loss(
    engine: Engine,
    model: Model,
    data: list[Datum],
    loss_fn: str,
    config: Mapping[str, float | str],
    *,
    backward: bool,
) -> ForwardBackwardOutput:
    model.require_made()
    if not data:
        raise EngineError("the request holds no data")
    examples = [_example(index, datum) for index, datum in enumerate(data)]
    return _output(engine.forward_backward(model.model_id, examples, loss_fn, config, backward=backward))


def _example(index: int, datum: Datum) -> Example:
    return Example(
        tokens=text_tokens(datum.model_input, f"datum {index}"),
        loss_inputs={name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()},
    )


def text_tokens(value: ModelInput, what: str) -> Int32:
    """The tokens of an input that is text only. EngineError otherwise, naming ``what`` and the chunk."""
    arrays: list[Int32] = []
    for index, chunk in enumerate(value.chunks):
        if not isinstance(chunk, EncodedTextChunk):
            raise EngineError(f"{what}: chunk {index} is of type {chunk.type!r}; this server reads 'encoded_text' only")
        arrays.append(chunk.array)
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, np.int32), *arrays])


def _output(result: LossResult) -> ForwardBackwardOutput:
    outputs = [{name: TensorData.from_numpy(array) for name, array in fields.items()} for fields in result.outputs]
    return ForwardBackwardOutput(OUTPUT_TYPE, outputs, dict(result.metrics))


# Optimizer


async def optim_step(state: State, call: Call) -> models.UntypedAPIFuture:
    """One AdamW step; another optimizer's parameters make the request fail."""
    request = call.read(models.OptimStepRequest)

    def run(engine: Engine) -> models.OptimStepResponse:
        model.require_made()
        if request.optimizer_params is not None:
            raise EngineError(f"optimizer {_family(request.optimizer_params)!r} is not offered; this server has 'adamw'")
        return models.OptimStepResponse(metrics=engine.optim_step(model.model_id, _adam(request.adam_params)))

    with state.lock:
        model = state.store.model(request.model_id)
        return accept(state, model, model.lane.number(request.seq_id), fingerprint(request), run)


def _adam(params: models.AdamParams | None) -> Adam:
    given = params or models.AdamParams()
    return Adam(
        learning_rate=given.learning_rate,
        beta1=given.beta1,
        beta2=given.beta2,
        eps=given.eps,
        weight_decay=given.weight_decay,
        grad_clip_norm=given.grad_clip_norm,
    )
