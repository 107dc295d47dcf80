"""A loss of a request: its data as the engine takes it, and its result as the contract has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs
from tinker_wire import models

from tinker._wire import json
from tinker.local.engines.inputs import LOSS_FORMS, resolve_loss
from tinker.local.engines.protocol import Engine, EngineError, LossResult, TrainingExample
from tinker.local.errors import APIProblem, unprocessable
from tinker.local.losses.checks import check_graph
from tinker.local.losses.graph import LossGraph
from tinker.local.operations.model_inputs import read_input
from tinker.local.operations.provenance import attach_records
from tinker.local.state import SharedData, State
from tinker.local.storage.sessions import ModelRecord, SessionRecord
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

OUTPUT_TYPE = "ArrayRecord"
CUSTOM = "custom"
RECORDED_LOSS = "stable_reinforce"
#: Every loss with its settings.
LOSS_SETTINGS = {**{name: [*form.config] for name, form in LOSS_FORMS.items()}, CUSTOM: ["loss_id"]}
Data: TypeAlias = Callable[[], list[Datum]]


@attrs.frozen
class LossRequest:
    """A loss to compute."""

    name: str
    options: Mapping[str, float | str]
    backward: bool


def decode_datum(index: int, datum: models.Datum) -> Datum:
    try:
        return json.public_datum(datum)
    except (ValueError, OverflowError) as error:
        raise EngineError(f"datum {index}: {error}") from error


def check_loss(loss: LossRequest) -> None:
    """Raise APIProblem 422 for a loss or a setting that is unknown."""
    try:
        if loss.name != CUSTOM:
            resolve_loss(loss.name, loss.options)
    except EngineError as error:
        raise unprocessable("loss_fn", str(error)) from error


def prepare_data(shared: SharedData, model: ModelRecord, loss: LossRequest, data: Data) -> Data:
    """Return the data with what the loss takes from the records of the server.

    Raises APIProblem 422 for sequences that the data cannot name.
    """
    if loss.name != RECORDED_LOSS:
        return data
    shared.recorded.announce()
    try:
        found = attach_records(data(), lambda name: shared.recorded.find(name, model.session.session_id))
    except EngineError as error:
        raise unprocessable("data", f"{RECORDED_LOSS}: {error}") from error
    return lambda: found


def compute_loss(
    state: State, engine: Engine, model: ModelRecord, loss: LossRequest, data: list[Datum]
) -> ForwardBackwardOutput:
    if not data:
        raise EngineError("the request has no data")
    examples = [_to_example(engine, index, datum) for index, datum in enumerate(data)]
    if loss.name == CUSTOM:
        graph = _find_custom_loss(model.session, loss.options)
        result = graph.run(engine, model.model_id, examples, backward=loss.backward)
    else:
        result = engine.forward_backward(model.model_id, examples, loss.name, loss.options, backward=loss.backward)
    with state.lock() as shared:
        key = model.session.usage_key(model.base_model)
        if loss.backward:
            model.history.add_loss(result.metrics)
        shared.usage.count("training", sum(len(example.tokens) for example in examples), key)
    return state.settings.profile.loss_output(_to_output(result), examples, loss.name, loss.options)


def _find_custom_loss(session: SessionRecord, options: Mapping[str, float | str]) -> LossGraph:
    wanted = options.get("loss_id")
    if set(options) != {"loss_id"} or not isinstance(wanted, str):
        raise EngineError("the loss 'custom' takes the loss_fn_config {'loss_id': ...}, with an id of create_custom_loss")
    if wanted not in session.losses:
        raise EngineError(f"there is no custom loss {wanted!r} in the session of this model; make it with create_custom_loss")
    return session.losses[wanted]


def check_custom_loss(request: models.CreateCustomLossRequest) -> LossGraph:
    try:
        return check_graph(request.name, request.inputs, request.graph)
    except EngineError as error:
        raise APIProblem(400, f"the custom loss {request.name!r}: {error}") from error


def _to_example(engine: Engine, index: int, datum: Datum) -> TrainingExample:
    tokens, images = read_input(engine, datum.model_input, f"datum {index}")
    return TrainingExample(
        tokens=tokens,
        images=images,
        loss_inputs={name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()},
    )


def _to_output(result: LossResult) -> ForwardBackwardOutput:
    outputs = [{name: TensorData.from_numpy(array) for name, array in fields.items()} for fields in result.outputs]
    return ForwardBackwardOutput(OUTPUT_TYPE, outputs, dict(result.metrics))
