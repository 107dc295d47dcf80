"""A loss of a request: its data as the engine takes it, with the records of sampled sequences, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray
from tinker_wire import models

from tinker._wire import json
from tinker.local.engines.inputs import LOSS_FORMS, resolve_loss
from tinker.local.engines.protocol import Engine, EngineError, Float32, LossResult, TrainingExample
from tinker.local.errors import APIProblem, unprocessable
from tinker.local.losses.graph import LossGraph, check_graph
from tinker.local.operations.model_inputs import read_input
from tinker.local.state import SharedData, State
from tinker.local.storage.recorded import RecordedSequence
from tinker.local.storage.sessions import ModelRecord, SessionRecord
from tinker.types.datum import Datum, ProvenanceSpan, SampledProvenanceSpan
from tinker.types.model_input import EncodedTextChunk, ModelInput
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
        raise EngineError(f"data[{index}]: {error}") from error


def check_loss(loss: LossRequest) -> None:
    """Raise APIProblem 422 for a loss or a setting that is unknown."""
    try:
        if loss.name != CUSTOM:
            resolve_loss(loss.name, loss.options)
    except EngineError as error:
        raise unprocessable("loss_fn", str(error)) from error


def prepare_data(shared: SharedData, model: ModelRecord, loss: LossRequest, data: Data) -> Data:
    """Return the data, with the recorded log-probabilities if the loss needs them.

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
    examples = to_examples(engine, data)
    if loss.name == CUSTOM:
        result = _find_custom_loss(model.session, loss.options).run(engine, model.model_id, examples, backward=loss.backward)
    else:
        result = engine.forward_backward(model.model_id, examples, loss.name, loss.options, backward=loss.backward)
    with state.lock() as shared:
        if loss.backward:
            weights = [np.asarray(example.loss_inputs.get("weights", 0), np.float32) for example in examples]
            is_gradient = loss.name == "cross_entropy" and any(one.min(initial=0) < 0 for one in weights)
            model.history.add_loss(result.metrics, is_sum=loss.name != "cross_entropy", is_gradient=is_gradient)
        shared.usage.count("training", sum(len(one.tokens) for one in examples), model.session.usage_key(model.base_model))
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


SMALL_CELLS = 256  # a pass of more is not cheaper together with others
SMALL_NBYTES = 1 << 16  # of a request that is looked at when it arrives


def find_small_shape(loss: LossRequest, data: list[Datum]) -> tuple[int, int] | None:
    """Return the number of data and the longest, for a gradient of a little text; None for another request."""
    if not data or not loss.backward or loss.name == CUSTOM:
        return None
    if not all(isinstance(chunk, EncodedTextChunk) for datum in data for chunk in datum.model_input.chunks):
        return None
    shape = len(data), max(datum.model_input.length for datum in data)
    return shape if shape[0] * shape[1] <= SMALL_CELLS else None


def to_examples(engine: Engine, data: Sequence[Datum]) -> list[TrainingExample]:
    """Return the data as the engine takes them. Raises EngineError for what it cannot read."""
    return [_to_example(engine, index, datum) for index, datum in enumerate(data)]


def _to_example(engine: Engine, index: int, datum: Datum) -> TrainingExample:
    tokens, images = read_input(engine, datum.model_input, f"data[{index}]")
    return TrainingExample(
        tokens=tokens,
        images=images,
        loss_inputs={name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()},
    )


def _to_output(result: LossResult) -> ForwardBackwardOutput:
    outputs = [{name: TensorData.from_numpy(array) for name, array in fields.items()} for fields in result.outputs]
    return ForwardBackwardOutput(OUTPUT_TYPE, outputs, dict(result.metrics))


FindRecord: TypeAlias = Callable[[str], RecordedSequence]
NO_TOKEN = -1  # at the places of an image


@attrs.frozen
class _Placed:
    """A span and its first position in the field that it belongs to. ``record`` is that of its sequence."""

    span: ProvenanceSpan
    start: int
    record: RecordedSequence

    @property
    def is_sampled(self) -> bool:
        return isinstance(self.span, SampledProvenanceSpan)

    @property
    def there(self) -> slice:
        """Return its positions in the field."""
        return slice(self.start, self.start + self.span.length)

    @property
    def recorded(self) -> slice:
        """Return its positions in the prompt, or in the sampled tokens, of its sequence."""
        return slice(self.span.offset, self.span.offset + self.span.length)


def attach_records(data: Sequence[Datum], find: FindRecord) -> list[Datum]:
    """Return the data with the recorded log-probabilities as ``logprobs``, and a mask that leaves the sampled targets only.

    Raises EngineError, naming datum and field, for spans that are missing or do not fit.
    """
    return [_attach(f"data[{index}]", datum, find) for index, datum in enumerate(data)]


def _attach(where: str, datum: Datum, find: FindRecord) -> Datum:
    if datum.model_input_spans is None or datum.loss_fn_input_spans is None:
        raise EngineError(f"{where} has no provenance; use Datum.with_provenance to name the sampled sequence of its tokens")
    if "target_tokens" not in datum.loss_fn_inputs:
        raise EngineError(f"{where}: loss_fn_inputs is missing target_tokens")
    _place(f"{where}.model_input_spans", datum.model_input_spans, _read_tokens(where, datum.model_input), find)
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    placed = _place(f"{where}.loss_fn_input_spans", datum.loss_fn_input_spans, targets, find)
    sampled = [one for one in placed if one.is_sampled]
    _check_overlaps(where, sampled)
    logprobs, mask = np.zeros(len(targets), np.float32), np.zeros(len(targets), np.float32)
    for one in sampled:
        logprobs[one.there], mask[one.there] = one.record.logprobs[one.recorded], 1.0
    _check_advantages(where, datum, mask)
    if "mask" in datum.loss_fn_inputs and np.shape(given := datum.loss_fn_inputs["mask"].to_numpy()) == mask.shape:
        mask = mask * given.astype(np.float32)
    added = {"logprobs": TensorData.from_numpy(logprobs), "mask": TensorData.from_numpy(mask)}
    return attrs.evolve(datum, loss_fn_inputs={**datum.loss_fn_inputs, **added})


def _read_tokens(where: str, value: ModelInput) -> NDArray[np.int32]:
    parts = [np.empty(0, np.int32)]
    try:
        for chunk in value.chunks:
            parts.append(chunk.array if isinstance(chunk, EncodedTextChunk) else np.full(chunk.length, NO_TOKEN, np.int32))
    except ValueError as error:
        raise EngineError(f"{where}.model_input: {error}") from error
    return np.concatenate(parts)


def _place(what: str, spans: Sequence[ProvenanceSpan], tokens: NDArray[np.generic], find: FindRecord) -> list[_Placed]:
    """Return the spans with their places. Raises EngineError unless they cover the tokens, and their sequences have them."""
    total = sum(span.length for span in spans)
    if total != len(tokens):
        raise EngineError(f"{what} cover {total} tokens, and there are {len(tokens)}")
    placed = list(_find_records(what, spans, find))
    for one in placed:
        record = one.record
        known = len(record.tokens) if one.is_sampled else record.prompt_length
        if one.recorded.stop > known:
            kind = "sampled tokens" if one.is_sampled else "tokens of the prompt"
            name = one.span.sequence_id
            raise EngineError(f"{what}: {one.recorded.start} to {one.recorded.stop} are not in the {known} {kind} of {name!r}")
        if one.is_sampled and (wrong := np.flatnonzero(tokens[one.there] != record.tokens[one.recorded])).size:
            at = one.start + int(wrong[0])
            raise EngineError(f"{what}: the token at position {at} is not the one that was sampled in {one.span.sequence_id!r}")
    return placed


def _find_records(what: str, spans: Sequence[ProvenanceSpan], find: FindRecord) -> Iterator[_Placed]:
    start = 0
    for span in spans:
        if span.length:
            try:
                yield _Placed(span, start, find(span.sequence_id))
            except EngineError as error:
                raise EngineError(f"{what}: {error}") from error
        start += span.length


def _check_overlaps(where: str, sampled: Sequence[_Placed]) -> None:
    """Raise EngineError when a sampled token is the target of two positions."""
    ordered = sorted(sampled, key=lambda one: (one.span.sequence_id, one.span.offset))
    for one, following in pairwise(ordered):
        if one.span.sequence_id == following.span.sequence_id and one.recorded.stop > following.recorded.start:
            raise EngineError(f"{where}.loss_fn_input_spans overlap: they name tokens of {one.span.sequence_id!r} twice")


def _check_advantages(where: str, datum: Datum, sampled: Float32) -> None:
    tensor = datum.loss_fn_inputs.get("advantages")
    advantages = np.zeros(len(sampled)) if tensor is None else tensor.to_numpy()
    if np.shape(advantages) == np.shape(sampled) and (wrong := np.flatnonzero((advantages != 0) & (sampled == 0))).size:
        raise EngineError(f"{where}: advantages is not 0 at position {int(wrong[0])}, which is not a sampled token")
