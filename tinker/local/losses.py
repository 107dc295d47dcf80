"""Handlers of losses: forward, forward and backward, and losses that the client traced. They run in the model's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs
import msgspec
import numpy as np
from tinker_wire import models

from tinker._wire import json, proto
from tinker.local.accept import accept, call_fingerprint, fingerprint
from tinker.local.call import Call
from tinker.local.engines.protocol import Engine, EngineError, Example, Int32, LossResult
from tinker.local.loss_graph import LossGraph, checked_graph
from tinker.local.problem import Problem
from tinker.local.state import State
from tinker.local.store import Model, Session
from tinker.types.datum import Datum
from tinker.types.model_input import EncodedTextChunk, ModelInput
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

T = TypeVar("T", bound=msgspec.Struct)

OUTPUT_TYPE = "ArrayRecord"
CUSTOM = "custom"


async def forward_backward(state: State, call: Call) -> models.UntypedAPIFuture:
    """A loss and its gradient, or the loss alone where a protobuf body says so."""
    if call.is_proto:
        return await _forward_backward_proto(state, call)
    request, same = await _read(state, call, models.ForwardBackwardRequest)
    return _accept_json(state, call, request.model_id, request.seq_id, request.forward_backward_input, same, backward=True)


async def forward(state: State, call: Call) -> models.UntypedAPIFuture:
    """A loss alone."""
    request, same = await _read(state, call, models.ForwardRequest)
    return _accept_json(state, call, request.model_id, request.seq_id, request.forward_input, same, backward=False)


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

    if not state.settings.profile.protobuf:
        raise state.settings.profile.unread
    try:
        request, same = await state.offload(len(call.content), read)
    except proto.ProtoError as error:
        raise Problem(422, f"the body is not a ForwardBackwardRequest: {error}") from error
    state.settings.profile.check_loss(request.loss_fn, request.loss_fn_config, request.data)
    loss = Loss(request.loss_fn, request.loss_fn_config, backward=not request.forward_only)
    operation = call.name if loss.backward else "forward"
    return _accept_loss(state, operation, request.model_id, request.seq_id, same, loss, lambda: request.data)


def _accept_json(
    state: State,
    call: Call,
    model_id: str,
    seq_id: int | None,
    what: models.ForwardBackwardInput,
    same: bytes,
    *,
    backward: bool,
) -> models.UntypedAPIFuture:
    loss = Loss(what.loss_fn, what.loss_fn_config or {}, backward=backward)
    state.settings.profile.check_loss(loss.name, loss.options, what.data)
    data = lambda: [_public(index, datum) for index, datum in enumerate(what.data)]  # noqa: E731
    return _accept_loss(state, call.name, model_id, seq_id, same, loss, data)


@attrs.frozen
class Loss:
    """A loss to compute."""

    name: str
    options: Mapping[str, float | str]
    backward: bool


def _accept_loss(
    state: State,
    operation: str,
    model_id: str,
    seq_id: int | None,
    same: bytes,
    loss: Loss,
    data: Callable[[], list[Datum]],
) -> models.UntypedAPIFuture:
    def run(engine: Engine) -> ForwardBackwardOutput:
        model.require_made()
        return _computed(state, engine, model, loss, data())

    with state.lock:
        model = state.store.model(model_id)
        return accept(state, operation, model, model.lane.number(seq_id), same, run)


def _public(index: int, datum: models.Datum) -> Datum:
    try:
        return json.public_datum(datum)
    except (ValueError, OverflowError) as error:
        raise EngineError(f"datum {index}: {error}") from error


def _computed(state: State, engine: Engine, model: Model, loss: Loss, data: list[Datum]) -> ForwardBackwardOutput:
    if not data:
        raise EngineError("the request holds no data")
    examples = [_example(index, datum) for index, datum in enumerate(data)]
    if loss.name == CUSTOM:
        graph = _custom_loss(model.session, loss.options)
        result = graph.run(engine, model.model_id, examples, backward=loss.backward)
    else:
        result = engine.forward_backward(model.model_id, examples, loss.name, loss.options, backward=loss.backward)
    with state.lock:
        place = model.session.project_id, model.session.session_id, model.base_model
        state.ledger.use("training", sum(len(example.tokens) for example in examples), place)
    return state.settings.profile.loss_output(_output(result), examples, loss.name, loss.options)


def _custom_loss(session: Session, options: Mapping[str, float | str]) -> LossGraph:
    wanted = options.get("loss_id")
    if set(options) != {"loss_id"} or not isinstance(wanted, str):
        raise EngineError("the loss 'custom' takes the loss_fn_config {'loss_id': ...}, with an id of create_custom_loss")
    if wanted not in session.losses:
        raise EngineError(f"there is no custom loss {wanted!r} in the session of this model; make it with create_custom_loss")
    return session.losses[wanted]


async def create_custom_loss(state: State, call: Call) -> models.UntypedAPIFuture:
    """A traced loss under an id, checked at once: Problem 400 says what it may not do. The same again answers the same."""
    request = call.read(models.CreateCustomLossRequest)
    same = fingerprint(request)
    with state.lock:
        state.require_open()
        session = state.store.live_session(request.session_id)
        key = f"{session.session_id}:custom_loss:{request.custom_loss_seq_id}"
        request_id = state.futures.submitted(key, same)
        if request_id is None:
            if len(session.losses) >= state.settings.max_custom_losses:
                limit = f"max_custom_losses={state.settings.max_custom_losses}"
                raise Problem(403, f"this session has as many custom losses as it may have ({limit})")
            session.losses[key] = _checked_loss(request)
            future = state.futures.open(key, same, session.span(call.name, session.session_id))
            state.futures.resolve(future, models.CreateCustomLossResponse(loss_id=key))
            request_id = future.request_id
    return models.UntypedAPIFuture(request_id=request_id)


def _checked_loss(request: models.CreateCustomLossRequest) -> LossGraph:
    try:
        return checked_graph(request.name, request.inputs, request.graph)
    except EngineError as error:
        raise Problem(400, f"the custom loss {request.name!r}: {error}") from error


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
