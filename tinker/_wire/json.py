"""JSON bodies: the generated records and the public, array-backed types, in both directions.

Arrays are written as pre-encoded fragments. NaN and infinity have no JSON form; they are refused
here, naming the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from tinker_wire import models

from tinker._basics.checks import to_plain
from tinker.types._values import np
from tinker.types.model_input import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
    ModelInputChunk,
)
from tinker.types.results import ForwardBackwardOutput, SampledSequence, SampleResponse, topk_table
from tinker.types.tensor_data import TensorData, dimensions

if TYPE_CHECKING:
    from numpy.typing import NDArray
from tinker_records import prepare

T = TypeVar("T")
MEDIA_TYPE = "application/json"


def _fragment(value: object) -> msgspec.Raw:
    """Return an array as JSON numbers, a number of numpy or a tensor of one as a number.

    float32 goes through Python floats, which keeps every bit.
    """
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        return msgspec.Raw(
            msgspec.json.encode((array.reshape(-1) if array.ndim else array).tolist())
        )
    if (number := to_plain(value)) is not value:
        return msgspec.Raw(msgspec.json.encode(number))
    raise TypeError(f"{type(value).__name__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=_fragment)
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode(value: object) -> bytes:
    """Return a generated record as JSON: defaults are sent, None is omitted."""
    return _encoder.encode(value)


def decode(body: bytes, kind: type[T]) -> T:
    """Decode JSON as a generated record; msgspec.DecodeError (a ValueError) if it does not fit.
    Unknown fields are ignored.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(prepare(kind), strict=True)
    return cast("T", decoder.decode(body))


# ----------------------------------------------------------------------------------- public -> wire


def wire_model_input(value: ModelInput) -> models.ModelInput:
    """Return the record of a model input."""
    return models.ModelInput(chunks=[_wire_chunk(chunk) for chunk in value.chunks])


def _wire_chunk(chunk: ModelInputChunk) -> models.ModelInputChunk:
    if isinstance(chunk, EncodedTextChunk):
        return models.EncodedTextChunk(tokens=cast("list[int]", chunk.array))
    if isinstance(chunk, ImageChunk):
        return models.ImageChunk(
            data=chunk.data, format=chunk.format, expected_tokens=chunk.expected_tokens
        )
    if isinstance(chunk, ImageAssetPointerChunk):
        return models.ImageAssetPointerChunk(
            format=chunk.format, location=chunk.location, expected_tokens=chunk.expected_tokens
        )
    return models.DmelChunk(dmel=chunk.dmel)


def wire_tensor(tensor: TensorData, what: str = "tensor") -> models.TensorData:
    """Return the record of a tensor, its values still an array. ValueError naming ``what`` for NaN
    and infinity.
    """
    values = tensor.values
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"{what} contains NaN or infinity, which JSON cannot carry")
    return models.TensorData(
        data=cast("list[float]", values),
        dtype=tensor.dtype,
        shape=dimensions(tensor),
        sparse_crow_indices=tensor.sparse_crow_indices,
        sparse_col_indices=tensor.sparse_col_indices,
    )


def wire_data(data: Sequence[Datum]) -> list[models.Datum]:
    """Return the records of datums; ValueError naming the datum index and field for values JSON
    cannot carry.
    """
    return [
        models.Datum(
            loss_fn_inputs={
                name: wire_tensor(tensor, f"data[{index}]: loss_fn_inputs[{name!r}]")
                for name, tensor in datum.loss_fn_inputs.items()
            },
            model_input=wire_model_input(datum.model_input),
        )
        for index, datum in enumerate(data)
    ]


def wire_loss_output(output: ForwardBackwardOutput) -> models.ForwardBackwardOutput:
    """Return the record of a loss output."""
    return models.ForwardBackwardOutput(
        loss_fn_output_type=output.loss_fn_output_type,
        loss_fn_outputs=[
            {name: wire_tensor(tensor, name) for name, tensor in fields.items()}
            for fields in output.loss_fn_outputs
        ],
        metrics=output.metrics,
    )


def wire_sample(response: SampleResponse) -> models.SampleResponse:
    """Return the record of a sample response."""
    return models.SampleResponse(
        sequences=[
            models.SampledSequence(
                stop_reason=sequence.stop_reason,
                tokens=sequence.tokens,
                logprobs=sequence.logprobs,
                topk_logprobs=sequence.topk_logprobs,
            )
            for sequence in response.sequences
        ],
        prompt_logprobs=response.prompt_logprobs,
        topk_prompt_logprobs=response.topk_prompt_logprobs,
        prompt_cache_hit_tokens=response.prompt_cache_hit_tokens,
    )


# ----------------------------------------------------------------------------------- wire -> public


def public_model_input(value: models.ModelInput) -> ModelInput:
    """Return the public form of a model input."""
    return ModelInput(chunks=[_public_chunk(chunk) for chunk in value.chunks])


def _public_chunk(chunk: models.ModelInputChunk) -> ModelInputChunk:
    if isinstance(chunk, models.EncodedTextChunk):
        return EncodedTextChunk(tokens=chunk.tokens)
    if isinstance(chunk, models.ImageChunk):
        return ImageChunk(
            data=chunk.data, format=chunk.format, expected_tokens=chunk.expected_tokens
        )
    if isinstance(chunk, models.ImageAssetPointerChunk):
        return ImageAssetPointerChunk(
            format=chunk.format, location=chunk.location, expected_tokens=chunk.expected_tokens
        )
    return DmelChunk(dmel=chunk.dmel)


def public_tensor(tensor: models.TensorData) -> TensorData:
    """Return the public form of a tensor; ValueError when values and shape disagree."""
    return TensorData(
        tensor.data,
        tensor.dtype,
        tensor.shape,
        tensor.sparse_crow_indices,
        tensor.sparse_col_indices,
    )


def public_datum(datum: models.Datum) -> Datum:
    """Return the public form of a datum."""
    inputs = {name: public_tensor(tensor) for name, tensor in datum.loss_fn_inputs.items()}
    return Datum(public_model_input(datum.model_input), inputs)


def public_loss_output(output: models.ForwardBackwardOutput) -> ForwardBackwardOutput:
    """Return the public form of a loss output."""
    return ForwardBackwardOutput(
        output.loss_fn_output_type,
        [
            {name: public_tensor(tensor) for name, tensor in fields.items()}
            for fields in output.loss_fn_outputs
        ],
        dict(output.metrics),
    )


def public_sample(
    response: models.SampleResponse, sequence_ids: Sequence[str] = (), body: bytes = b""
) -> SampleResponse:
    """Return the public form of a sample response; ``sequence_ids`` come from the submit response
    and may be missing.

    The fields of the ``body`` that the contract does not have are kept.
    """
    whole, each = (
        _fields_of_sample(body) if body else (_NO_FIELDS, [_NO_FIELDS] * len(response.sequences))
    )
    sequences = [
        SampledSequence(
            stop_reason=sequence.stop_reason,
            sequence_id=sequence_ids[index] if index < len(sequence_ids) else sequence.sequence_id,
            tokens=sequence.tokens,
            logprobs=sequence.logprobs,
            topk_logprobs_np=topk_table(sequence.topk_logprobs),
            extra=_unknown(fields, models.SampledSequence),
        )
        for index, (sequence, fields) in enumerate(zip(response.sequences, each, strict=True))
    ]
    prompt = response.prompt_logprobs
    return SampleResponse(
        sequences=sequences,
        prompt_logprobs_np=None if prompt is None else np.asarray(prompt, np.float32),
        topk_prompt_logprobs_np=topk_table(response.topk_prompt_logprobs),
        prompt_cache_hit_tokens=response.prompt_cache_hit_tokens or 0,
        extra=_unknown(whole, models.SampleResponse),
    )


_NO_FIELDS: Mapping[str, msgspec.Raw] = {}


def _fields_of_sample(
    body: bytes,
) -> tuple[Mapping[str, msgspec.Raw], Sequence[Mapping[str, msgspec.Raw]]]:
    """Return the fields of a sample's JSON, and those of each of its sequences, unread."""
    whole = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return whole, msgspec.json.decode(whole["sequences"], type=list[dict[str, msgspec.Raw]])


def _unknown(
    fields: Mapping[str, msgspec.Raw], kind: type[msgspec.Struct]
) -> dict[str, Any] | None:
    """Return the values of the fields that the record does not have; None where it
    has all of them.
    """
    return {
        name: msgspec.json.decode(fields[name])
        for name in fields.keys() - {*kind.__struct_encode_fields__}
    } or None
