"""The protobuf messages of package ``tinker_public``, written from and read into the memory of
arrays.

Encoders return parts: small headers and views of the caller's arrays, never joined here. Decoders
return arrays that view one private copy of the message. Field order inside a message is free in
protobuf; arrays come last so that headers stay together.
"""

from __future__ import annotations

import itertools
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import attrs

from tinker._wire import proto_numbers as pb
from tinker.types._values import np
from tinker.types.model_input import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ImageChunk,
    ModelInput,
    ModelInputChunk,
    PromptProvenanceSpan,
    ProvenanceSpan,
    SampledProvenanceSpan,
)
from tinker.types.results import (
    ForwardBackwardOutput,
    LossFnOutput,
    PromptAltTokens,
    SampledSequence,
    SampleResponse,
    TopkLogprobs,
)
from tinker.types.tensor_data import NumericArray, TensorData, dimensions, wrap

if TYPE_CHECKING:
    from numpy.typing import NDArray

Part: TypeAlias = bytes | memoryview
_Span = TypeVar("_Span", PromptProvenanceSpan, SampledProvenanceSpan)
MEDIA_TYPE = "application/x-protobuf"

_FLOAT32, _INT64, _INT32, _BFLOAT16 = (
    pb.DTYPE[name] for name in ("float32", "int64", "int32", "bfloat16")
)
_ITEMSIZE = {_FLOAT32: 4, _INT64: 8, _INT32: 4, _BFLOAT16: 2}
_STOP_REASONS = {number: reason for reason, number in pb.STOP_REASON.items()}
_FLOAT32_DTYPE, _INT64_DTYPE, _INT32_DTYPE, _UINT16_DTYPE = "<f4", "<i8", "<i4", "<u2"
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5  # wire types
_PROMPT_SPAN = (
    pb.PROMPT_PROVENANCE_SPAN_SEQUENCE_ID,
    pb.PROMPT_PROVENANCE_SPAN_OFFSET,
    pb.PROMPT_PROVENANCE_SPAN_LENGTH,
)
_SAMPLED_SPAN = (
    pb.SAMPLED_PROVENANCE_SPAN_SEQUENCE_ID,
    pb.SAMPLED_PROVENANCE_SPAN_OFFSET,
    pb.SAMPLED_PROVENANCE_SPAN_LENGTH,
)
# What stands before the fields of a sequence, each one byte.
_REASON_KEY = pb.SAMPLED_SEQUENCE_STOP_REASON << 3 | _VARINT
_USUAL_KEYS = (
    (pb.SAMPLED_SEQUENCE_TOKENS << 3 | _LEN, _INT32_DTYPE),
    (pb.SAMPLED_SEQUENCE_LOGPROBS << 3 | _LEN, _FLOAT32_DTYPE),
)


class ProtoError(ValueError):
    """The bytes are not the message they should be."""


@attrs.frozen(kw_only=True)
class ForwardBackwardCall:
    """A decoded ``ForwardBackwardRequest``."""

    model_id: str
    seq_id: int
    data: list[Datum]
    loss_fn: str
    loss_fn_config: dict[str, float | str]
    forward_only: bool


# ------------------------------------------------------------------------------------------ writing


def _varint(value: int) -> bytes:
    if value < 0:
        value += 1 << 64  # negative int32 and int64 travel as ten-byte two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _int(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value) if value else b""


def _blob(field: int, value: bytes) -> bytes:
    return _key(field, _LEN) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _blob(field, value.encode()) if value else b""


def _double(field: int, value: float) -> bytes:
    return _key(field, _I64) + struct.pack("<d", value)


def _view(array: NDArray[Any]) -> memoryview:
    """Return the array's bytes, little-endian and contiguous, without a copy where it is so
    already.
    """
    if array.size == 0:
        return memoryview(b"")
    if not array.dtype.isnative and array.dtype.byteorder != "<":
        array = array.astype(array.dtype.newbyteorder("<"))
    try:
        return array.data.cast("B")
    except TypeError:  # which is faster than to ask whether it is contiguous
        return np.ascontiguousarray(array).data.cast("B")


class _Message:
    """Parts of one message and their total length; nested messages are added with their header in
    front.
    """

    __slots__ = ("nbytes", "parts")

    def __init__(self, head: bytes = b"") -> None:
        self.parts: list[Part] = [head] if head else []
        self.nbytes = len(head)

    def raw(self, part: Part) -> None:
        if part:
            self.parts.append(part)
            self.nbytes += len(part)

    def array(self, field: int, values: NDArray[Any]) -> None:
        view = _view(values)
        self.raw(_key(field, _LEN) + _varint(len(view)))
        self.raw(view)

    def nested(self, field: int, message: _Message) -> None:
        self.raw(_key(field, _LEN) + _varint(message.nbytes))
        self.parts += message.parts
        self.nbytes += message.nbytes


def encode_forward_backward(
    model_id: str,
    seq_id: int,
    data: Sequence[Datum],
    loss_fn: str,
    loss_fn_config: Mapping[str, float | str] | None = None,
    *,
    forward_only: bool = False,
) -> list[Part]:
    """Return the parts of a ``ForwardBackwardRequest``; the arrays are viewed, not copied."""
    return forward_backward_head(
        model_id, seq_id, loss_fn, loss_fn_config, forward_only=forward_only
    ) + encode_data(data)


def forward_backward_head(
    model_id: str,
    seq_id: int,
    loss_fn: str,
    config: Mapping[str, float | str] | None,
    *,
    forward_only: bool,
) -> list[Part]:
    """Return every field but the data. Numbers of the config are written to both maps, text to the
    newer one only.
    """
    head = [
        _text(pb.FORWARD_BACKWARD_REQUEST_MODEL_ID, model_id),
        _int(pb.FORWARD_BACKWARD_REQUEST_SEQ_ID, seq_id),
        _text(pb.FORWARD_BACKWARD_REQUEST_LOSS_FN, loss_fn),
    ]
    head.append(_int(pb.FORWARD_BACKWARD_REQUEST_FORWARD_ONLY, forward_only))
    for name, value in (config or {}).items():
        key = _text(pb.MAP_ENTRY_KEY, name)
        if isinstance(value, str):
            text = _blob(pb.LOSS_CONFIG_VALUE_TEXT, value.encode())
            head.append(
                _blob(
                    pb.FORWARD_BACKWARD_REQUEST_LOSS_FN_CONFIG_V2,
                    key + _blob(pb.MAP_ENTRY_VALUE, text),
                )
            )
        else:
            number = _double(pb.LOSS_CONFIG_VALUE_NUMBER, value)
            head.append(
                _blob(
                    pb.FORWARD_BACKWARD_REQUEST_LOSS_FN_CONFIG,
                    key + _double(pb.MAP_ENTRY_VALUE, value),
                )
            )
            head.append(
                _blob(
                    pb.FORWARD_BACKWARD_REQUEST_LOSS_FN_CONFIG_V2,
                    key + _blob(pb.MAP_ENTRY_VALUE, number),
                )
            )
    return [b"".join(head)]


def encode_data(data: Sequence[Datum]) -> list[Part]:
    """Return the repeated field ``data``; needs no number, so it can be made before the request's
    turn.
    """
    parts: list[Part] = []
    for index, datum in enumerate(data):
        try:
            written = _datum(datum)
        except ValueError as error:
            raise ValueError(f"data[{index}]: {error}") from error
        parts.append(_datum_head(sum(map(len, written))))
        parts += written
    return parts


def _datum(datum: Datum) -> list[Part]:
    parts: list[Part] = []
    for chunk in datum.model_input.chunks:
        if isinstance(chunk, EncodedTextChunk):
            parts += (_text_head(chunk.length), _view(chunk.array))
        else:
            parts += _nested(pb.DATUM_MODEL_INPUT, _chunk(chunk))
    for name, tensor in datum.loss_fn_inputs.items():
        if tensor.sparse_crow_indices is None:
            values = tensor.values
            parts += (
                _dense_head(name, tensor.dtype, tuple(tensor.shape or values.shape), values.nbytes),
                _view(values),
            )
        else:
            parts += _nested(pb.DATUM_LOSS_FN_INPUTS, _entry(name, _tensor(tensor)))
    for span in datum.model_input_spans or ():
        parts.append(_blob(pb.DATUM_MODEL_INPUT_SPANS, _span(span)))
    for span in datum.loss_fn_input_spans or ():
        parts.append(_blob(pb.DATUM_LOSS_FN_INPUT_SPANS, _span(span)))
    return parts


def _nested(field: int, message: _Message) -> list[Part]:
    return [_key(field, _LEN) + _varint(message.nbytes), *message.parts]


def _entry(name: str, value: _Message) -> _Message:
    entry = _Message(_text(pb.MAP_ENTRY_KEY, name))
    entry.nested(pb.MAP_ENTRY_VALUE, value)
    return entry


# Most datums of a batch have the same names and shapes, so what stands in front of their arrays is
# made once.


@lru_cache(maxsize=1024)
def _datum_head(nbytes: int) -> bytes:
    """Return everything of a datum before its fields."""
    return _key(pb.FORWARD_BACKWARD_REQUEST_DATA, _LEN) + _varint(nbytes)


@lru_cache(maxsize=1024)
def _text_head(tokens: int) -> bytes:
    """Return everything of a text chunk before its tokens."""
    nbytes = 4 * tokens
    text = _key(pb.ENCODED_TEXT_CHUNK_TOKENS, _LEN) + _varint(nbytes)
    chunk = _key(pb.CHUNK_ENCODED_TEXT, _LEN) + _varint(len(text) + nbytes) + text
    return _key(pb.DATUM_MODEL_INPUT, _LEN) + _varint(len(chunk) + nbytes) + chunk


@lru_cache(maxsize=1024)
def _dense_head(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> bytes:
    """Return everything of a loss input before the values of its dense tensor."""
    tensor = _int(pb.TENSOR_DTYPE, pb.DTYPE[dtype]) + _blob(
        pb.TENSOR_SHAPE, b"".join(map(_varint, shape))
    )
    tensor += _key(pb.TENSOR_DENSE, _LEN) + _varint(nbytes)
    entry = (
        _text(pb.MAP_ENTRY_KEY, name)
        + _key(pb.MAP_ENTRY_VALUE, _LEN)
        + _varint(len(tensor) + nbytes)
        + tensor
    )
    return _key(pb.DATUM_LOSS_FN_INPUTS, _LEN) + _varint(len(entry) + nbytes) + entry


def _chunk(chunk: ModelInputChunk) -> _Message:
    """Write a chunk that is not text."""
    message = _Message()
    if isinstance(chunk, ImageChunk):
        inner = _Message(_text(pb.IMAGE_CHUNK_FORMAT, chunk.format))
        if chunk.expected_tokens is not None:
            inner.raw(
                _key(pb.IMAGE_CHUNK_EXPECTED_TOKENS, _VARINT) + _varint(chunk.expected_tokens)
            )
        inner.raw(_blob(pb.IMAGE_CHUNK_DATA, chunk.data))
        message.nested(pb.CHUNK_IMAGE, inner)
    elif isinstance(chunk, DmelChunk):
        message.nested(pb.CHUNK_DMEL, _Message(_blob(pb.DMEL_CHUNK_DMEL, chunk.dmel)))
    else:
        raise ValueError(
            "an ImageAssetPointerChunk cannot be trained on over protobuf; send the "
            "image as an ImageChunk"
        )
    return message


def _tensor(tensor: TensorData) -> _Message:
    message = _Message(_int(pb.TENSOR_DTYPE, pb.DTYPE[tensor.dtype]))
    message.raw(_blob(pb.TENSOR_SHAPE, b"".join(map(_varint, dimensions(tensor)))))
    if tensor.sparse_crow_indices is None:
        message.array(pb.TENSOR_DENSE, tensor.values)
    else:
        sparse = _Message()
        sparse.array(pb.SPARSE_CSR_VALUES, tensor.values)
        sparse.array(pb.SPARSE_CSR_CROW_INDICES, np.asarray(tensor.sparse_crow_indices, np.int64))
        sparse.array(pb.SPARSE_CSR_COL_INDICES, np.asarray(tensor.sparse_col_indices, np.int64))
        message.nested(pb.TENSOR_SPARSE_CSR, sparse)
    return message


def _span(span: ProvenanceSpan) -> bytes:
    is_prompt = isinstance(span, PromptProvenanceSpan)
    name, offset, length = _PROMPT_SPAN if is_prompt else _SAMPLED_SPAN
    body = _text(name, span.sequence_id) + _int(offset, span.offset) + _int(length, span.length)
    return _blob(
        pb.PROVENANCE_SPAN_PROMPT_TOKENS if is_prompt else pb.PROVENANCE_SPAN_SAMPLED_TOKENS, body
    )


def encode_loss_output(output: ForwardBackwardOutput) -> bytes:
    """Encode a ``ForwardBackwardOutput``: one record for each run of datums with the same fields,
    dtypes and inner shapes.
    """
    message = _Message(
        _text(pb.FORWARD_BACKWARD_OUTPUT_LOSS_FN_OUTPUT_TYPE, output.loss_fn_output_type)
    )
    for run in _runs(output.loss_fn_outputs):
        message.nested(
            pb.FORWARD_BACKWARD_OUTPUT_LOSS_FN_OUTPUTS, _record(output.loss_fn_output_type, run)
        )
    for name, value in output.metrics.items():
        metric = _text(pb.MAP_ENTRY_KEY, name) + _double(pb.MAP_ENTRY_VALUE, value)
        message.raw(_blob(pb.FORWARD_BACKWARD_OUTPUT_METRICS, metric))
    return b"".join(message.parts)


def _layout(output: LossFnOutput) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, tensor.dtype, tuple(dimensions(tensor)[1:])) for name, tensor in output.items()]


def _runs(outputs: Sequence[LossFnOutput]) -> Iterator[list[LossFnOutput]]:
    run: list[LossFnOutput] = []
    for output in outputs:
        if run and _layout(output) != _layout(run[0]):
            yield run
            run = []
        run.append(output)
    if run:
        yield run


def _record(type_tag: str, run: Sequence[LossFnOutput]) -> _Message:
    message = _Message(
        _text(pb.ARRAY_RECORD_TYPE_TAG, type_tag.rpartition(":")[2])
        + _int(pb.ARRAY_RECORD_NUM_DATUMS, len(run))
    )
    for name, first in run[0].items():
        arrays = [np.atleast_1d(output[name].to_numpy()) for output in run]
        batched = _Message(_int(pb.BATCHED_TENSOR_DTYPE, pb.DTYPE[first.dtype]))
        if arrays[0].ndim > 1:
            batched.raw(
                _blob(pb.BATCHED_TENSOR_TRAILING_SHAPE, b"".join(map(_varint, arrays[0].shape[1:])))
            )
        batched.array(
            pb.BATCHED_TENSOR_OFFSETS,
            np.cumsum([0, *(array.nbytes for array in arrays)], dtype=np.int64),
        )
        batched.raw(
            _key(pb.BATCHED_TENSOR_DATA, _LEN) + _varint(sum(array.nbytes for array in arrays))
        )
        for array in arrays:
            batched.raw(_view(array))
        message.nested(pb.ARRAY_RECORD_FIELDS, _entry(name, batched))
    return message


def encode_sample(response: SampleResponse) -> bytes:
    """Return a ``SampleResponse``; NaN prompt logprobs stand for None."""
    message = _Message()
    for sequence in response.sequences:
        message.nested(pb.SAMPLE_RESPONSE_SEQUENCES, _sequence(sequence))
    if response.prompt_logprobs_np is not None:
        message.array(pb.SAMPLE_RESPONSE_PROMPT_LOGPROBS, response.prompt_logprobs_np)
    if response.topk_prompt_logprobs_np is not None:
        message.nested(
            pb.SAMPLE_RESPONSE_TOPK_PROMPT_LOGPROBS, _topk(response.topk_prompt_logprobs_np)
        )
    message.raw(_int(pb.SAMPLE_RESPONSE_PROMPT_CACHE_HIT_TOKENS, response.prompt_cache_hit_tokens))
    if response.target_prompt_logprobs is not None:
        message.nested(
            pb.SAMPLE_RESPONSE_TARGET_PROMPT_LOGPROBS, _tensor(response.target_prompt_logprobs)
        )
    if response.prompt_alt_tokens is not None:
        alternatives = _Message()
        alternatives.nested(pb.PROMPT_ALT_TOKENS_TOKENS, _tensor(response.prompt_alt_tokens.tokens))
        alternatives.nested(
            pb.PROMPT_ALT_TOKENS_LOGPROBS, _tensor(response.prompt_alt_tokens.logprobs)
        )
        message.nested(pb.SAMPLE_RESPONSE_PROMPT_ALT_TOKENS, alternatives)
    return b"".join(message.parts)


def _sequence(sequence: SampledSequence) -> _Message:
    message = _Message(_int(pb.SAMPLED_SEQUENCE_STOP_REASON, _stop_number(sequence.stop_reason)))
    message.array(pb.SAMPLED_SEQUENCE_TOKENS, sequence.tokens_np)
    if sequence.logprobs_np is not None:
        message.array(pb.SAMPLED_SEQUENCE_LOGPROBS, sequence.logprobs_np)
    if sequence.topk_logprobs_np is not None:
        message.nested(pb.SAMPLED_SEQUENCE_TOPK_SAMPLED_LOGPROBS, _topk(sequence.topk_logprobs_np))
    return message


def _topk(table: TopkLogprobs) -> _Message:
    length, k = table.token_ids.shape
    message = _Message(_int(pb.TOPK_LOGPROBS_K, k) + _int(pb.TOPK_LOGPROBS_LENGTH, length))
    message.array(pb.TOPK_LOGPROBS_TOKEN_IDS, table.token_ids)
    message.array(pb.TOPK_LOGPROBS_LOGPROBS, table.logprobs)
    return message


# ------------------------------------------------------------------------------------------ reading


class _Reader:
    """The fields of one message between two offsets of a buffer. Every length is checked against
    the message's end.
    """

    __slots__ = ("_buffer", "_end", "_start")

    def __init__(self, buffer: bytearray, start: int = 0, end: int | None = None) -> None:
        self._buffer = buffer
        self._start = start
        self._end = len(buffer) if end is None else end

    def _read_varint(self, at: int) -> tuple[int, int]:
        buffer, end = self._buffer, self._end
        value = shift = 0
        while at < end:
            byte = buffer[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
            shift += 7
            if shift > 63:
                break
        raise ProtoError("truncated or overlong number")

    def fields(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (field number, wire type, value or start, end) of each field. Numbers of one byte
        take a short way.
        """
        buffer, at, last = self._buffer, self._start, self._end
        while at < last:
            key = buffer[at]
            at += 1
            if key > 0x7F:
                key, at = self._read_varint(at - 1)
            wire_type = key & 7
            if key < 8:
                raise ProtoError("field number 0")
            if wire_type == _LEN:
                length, value = (
                    self._read_varint(at)
                    if at >= last or buffer[at] > 0x7F
                    else (buffer[at], at + 1)
                )
                stop = value + length
            elif wire_type == _VARINT:
                value, stop = self._read_varint(at)
            elif wire_type in (_I64, _I32):
                value, stop = at, at + (8 if wire_type == _I64 else 4)
            else:
                raise ProtoError(f"unsupported wire type {wire_type}")
            if stop > last:
                raise ProtoError("a field reaches beyond its message")
            yield key >> 3, wire_type, value, stop
            at = stop

    def last(self) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
        """Return the numbers of this message and the spans of what has a length, by field: the last
        one of each counts.
        """
        numbers: dict[int, int] = defaultdict(int)
        spans: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for field, wire_type, start, end in self.fields():
            if wire_type == _VARINT:
                numbers[field] = start
            elif wire_type == _LEN:
                spans[field] = (start, end)
        return numbers, spans

    def nested(self, start: int, end: int) -> _Reader:
        return _Reader(self._buffer, start, end)

    def raw(self, start: int, end: int) -> bytes:
        return bytes(memoryview(self._buffer)[start:end])

    def text(self, start: int, end: int) -> str:
        try:
            return self.raw(start, end).decode()
        except UnicodeDecodeError as error:
            raise ProtoError("text is not UTF-8") from error

    def double(self, start: int) -> float:
        value: float = struct.unpack_from("<d", self._buffer, start)[0]
        return value

    def array(self, start: int, end: int, dtype: str) -> NDArray[Any]:
        count, rest = divmod(end - start, int(dtype[-1]))
        if rest:
            raise ProtoError(
                f"{end - start} bytes are not a multiple of the size of {np.dtype(dtype)} values"
            )
        return np.frombuffer(self._buffer, dtype, count, start)

    def integers(self, wanted: int) -> list[int]:
        """Return the repeated int64 of this field, packed or not."""
        numbers: list[int] = []
        for field, wire_type, at, end in self.fields():
            if field == wanted and wire_type == _VARINT:
                numbers.append(at)
            elif field == wanted:
                while at < end:
                    number, at = self._read_varint(at)
                    numbers.append(number)
        return list(map(_to_signed, numbers))


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ProtoError(what)


def _values(reader: _Reader, start: int, end: int, dtype: int) -> NumericArray:
    """Read a tensor field in the two dtypes users see: bfloat16 widens to float32,
    int32 to int64.
    """
    if dtype == _FLOAT32:
        return reader.array(start, end, _FLOAT32_DTYPE)
    if dtype == _INT64:
        return reader.array(start, end, _INT64_DTYPE)
    if dtype == _INT32:
        return cast("NumericArray", reader.array(start, end, _INT32_DTYPE).astype(np.int64))
    if dtype == _BFLOAT16:
        return cast(
            "NumericArray",
            (reader.array(start, end, _UINT16_DTYPE).astype(np.uint32) << 16).view(np.float32),
        )
    raise ProtoError(f"unknown tensor dtype {dtype}")


def _map_entry(reader: _Reader) -> tuple[str, int, int, int]:
    """Return the key of a map entry, and the wire type, start and end of its value (an absent value
    is empty).
    """
    name, value = "", (_LEN, 0, 0)
    for field, wire_type, start, end in reader.fields():
        if field == pb.MAP_ENTRY_KEY and wire_type == _LEN:
            name = reader.text(start, end)
        elif field == pb.MAP_ENTRY_VALUE:
            value = (wire_type, start, end)
    return name, *value


def decode_forward_backward(body: bytes) -> ForwardBackwardCall:
    """Read a ``ForwardBackwardRequest``. ProtoError when the bytes are not one."""
    reader = _Reader(bytearray(body))
    numbers, spans = reader.last()
    data: list[Datum] = []
    old: dict[str, float | str] = {}
    new: dict[str, float | str] = {}
    for field, wire_type, start, end in reader.fields():
        if field == pb.FORWARD_BACKWARD_REQUEST_DATA and wire_type == _LEN:
            data.append(_read_datum(reader.nested(start, end)))
        elif field == pb.FORWARD_BACKWARD_REQUEST_LOSS_FN_CONFIG and wire_type == _LEN:
            name, kind, at, _ = _map_entry(reader.nested(start, end))
            old[name] = reader.double(at) if kind == _I64 else 0.0
        elif field == pb.FORWARD_BACKWARD_REQUEST_LOSS_FN_CONFIG_V2 and wire_type == _LEN:
            name, _, at, stop = _map_entry(reader.nested(start, end))
            new[name] = _read_config_value(reader.nested(at, stop))
    return ForwardBackwardCall(
        model_id=reader.text(*spans[pb.FORWARD_BACKWARD_REQUEST_MODEL_ID]),
        seq_id=_to_signed(numbers[pb.FORWARD_BACKWARD_REQUEST_SEQ_ID]),
        data=data,
        loss_fn=reader.text(*spans[pb.FORWARD_BACKWARD_REQUEST_LOSS_FN]),
        loss_fn_config={**old, **new},
        forward_only=bool(numbers[pb.FORWARD_BACKWARD_REQUEST_FORWARD_ONLY]),
    )


def _read_config_value(reader: _Reader) -> float | str:
    value: float | str = 0.0
    for field, wire_type, start, end in reader.fields():
        if field == pb.LOSS_CONFIG_VALUE_NUMBER and wire_type == _I64:
            value = reader.double(start)
        elif field == pb.LOSS_CONFIG_VALUE_TEXT and wire_type == _LEN:
            value = reader.text(start, end)
    return value


def _read_datum(reader: _Reader) -> Datum:
    chunks: list[ModelInputChunk] = []
    inputs: dict[str, TensorData] = {}
    prompt: list[ProvenanceSpan] = []
    targets: list[ProvenanceSpan] = []
    for field, wire_type, start, end in reader.fields():
        if wire_type != _LEN:
            continue
        if field == pb.DATUM_MODEL_INPUT:
            chunks.append(_read_chunk(reader.nested(start, end)))
        elif field == pb.DATUM_LOSS_FN_INPUTS:
            name, _, at, stop = _map_entry(reader.nested(start, end))
            inputs[name] = _read_tensor(reader.nested(at, stop))
        elif field == pb.DATUM_MODEL_INPUT_SPANS:
            prompt.append(_read_span(reader.nested(start, end)))
        elif field == pb.DATUM_LOSS_FN_INPUT_SPANS:
            targets.append(_read_span(reader.nested(start, end)))
    paired = bool(prompt or targets)
    return Datum(
        ModelInput(chunks=chunks),
        inputs,
        model_input_spans=prompt if paired else None,
        loss_fn_input_spans=targets if paired else None,
    )


def _read_chunk(reader: _Reader) -> ModelInputChunk:
    for kind, wire_type, start, end in reader.fields():
        if wire_type != _LEN:
            continue
        inner = reader.nested(start, end)
        if kind == pb.CHUNK_ENCODED_TEXT:
            return EncodedTextChunk(
                tokens=inner.array(*inner.last()[1][pb.ENCODED_TEXT_CHUNK_TOKENS], _INT32_DTYPE)
            )
        if kind == pb.CHUNK_IMAGE:
            return _read_image(inner)
        if kind == pb.CHUNK_DMEL:
            return DmelChunk(dmel=inner.raw(*inner.last()[1][pb.DMEL_CHUNK_DMEL]))
    raise ProtoError("a chunk of no known kind")


def _read_image(reader: _Reader) -> ImageChunk:
    numbers, spans = reader.last()
    expected = numbers.get(pb.IMAGE_CHUNK_EXPECTED_TOKENS)
    image_format = cast("Any", reader.text(*spans[pb.IMAGE_CHUNK_FORMAT]))
    try:
        return ImageChunk(
            data=reader.raw(*spans[pb.IMAGE_CHUNK_DATA]),
            format=image_format,
            expected_tokens=None if expected is None else _to_signed(expected),
        )
    except ValueError as error:
        raise ProtoError(f"an image: {error}") from error


def _read_span(reader: _Reader) -> ProvenanceSpan:
    for kind, wire_type, start, end in reader.fields():
        if wire_type == _LEN and kind == pb.PROVENANCE_SPAN_PROMPT_TOKENS:
            return _read_tokens_of(PromptProvenanceSpan, _PROMPT_SPAN, reader.nested(start, end))
        if wire_type == _LEN and kind == pb.PROVENANCE_SPAN_SAMPLED_TOKENS:
            return _read_tokens_of(SampledProvenanceSpan, _SAMPLED_SPAN, reader.nested(start, end))
    raise ProtoError("a provenance span of no known kind")


def _read_tokens_of(make: type[_Span], known: tuple[int, int, int], reader: _Reader) -> _Span:
    sequence_id, offset, length = known
    numbers, spans = reader.last()
    name = reader.text(*spans[sequence_id])
    try:
        return make(
            sequence_id=name, offset=_to_signed(numbers[offset]), length=_to_signed(numbers[length])
        )
    except ValueError as error:
        raise ProtoError(str(error)) from error


def _read_tensor(reader: _Reader) -> TensorData:
    numbers, spans = reader.last()
    dtype, shape = numbers[pb.TENSOR_DTYPE], reader.integers(pb.TENSOR_SHAPE)
    try:
        if pb.TENSOR_SPARSE_CSR in spans:
            return _read_csr(reader.nested(*spans[pb.TENSOR_SPARSE_CSR]), dtype, shape)
        values = _values(reader, *spans[pb.TENSOR_DENSE], dtype)
        return TensorData.from_numpy(values.reshape(_shape(shape, values.size)))
    except ValueError as error:
        raise (
            error if isinstance(error, ProtoError) else ProtoError(f"bad tensor: {error}")
        ) from error


def _shape(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the declared shape when it fits; no shape means one dimension (a scalar has one value
    and no dimensions).
    """
    if not shape:
        return (size,) if size != 1 else ()
    _expect(all(dimension >= 0 for dimension in shape), "negative dimension")
    return tuple(shape)


def _read_csr(reader: _Reader, dtype: int, shape: Sequence[int]) -> TensorData:
    _, spans = reader.last()
    values = _values(reader, *spans[pb.SPARSE_CSR_VALUES], dtype)
    crow, col = (
        reader.array(*spans[field], _INT64_DTYPE).tolist()
        for field in (pb.SPARSE_CSR_CROW_INDICES, pb.SPARSE_CSR_COL_INDICES)
    )
    return TensorData(values, "float32" if values.dtype.kind == "f" else "int64", shape, crow, col)


def split_fields(body: bytes) -> list[bytes]:
    """Split a message into its fields."""
    ends = [0, *(end for *_, end in _Reader(bytearray(body)).fields())]
    return [body[start:end] for start, end in itertools.pairwise(ends)]


def decode_loss_output(body: bytes) -> ForwardBackwardOutput:
    """Read a ``ForwardBackwardOutput``; the arrays view one copy of ``body`` and are writable."""
    reader = _Reader(bytearray(body))
    output_type = ""
    outputs: list[LossFnOutput] = []
    metrics: dict[str, float] = {}
    for field, wire_type, start, end in reader.fields():
        if wire_type != _LEN:
            continue
        if field == pb.FORWARD_BACKWARD_OUTPUT_LOSS_FN_OUTPUT_TYPE:
            output_type = reader.text(start, end)
        elif field == pb.FORWARD_BACKWARD_OUTPUT_LOSS_FN_OUTPUTS:
            outputs += _read_record(reader.nested(start, end))
        elif field == pb.FORWARD_BACKWARD_OUTPUT_METRICS:
            name, kind, at, _ = _map_entry(reader.nested(start, end))
            metrics[name] = reader.double(at) if kind == _I64 else 0.0
    return ForwardBackwardOutput(output_type.rpartition(":")[2] or "ArrayRecord", outputs, metrics)


def _read_record(reader: _Reader) -> list[LossFnOutput]:
    count = 0
    columns: list[tuple[str, list[TensorData]]] = []
    for field, wire_type, start, end in reader.fields():
        if field == pb.ARRAY_RECORD_NUM_DATUMS and wire_type == _VARINT:
            count = _to_signed(start)
        elif field == pb.ARRAY_RECORD_FIELDS and wire_type == _LEN:
            name, _, at, stop = _map_entry(reader.nested(start, end))
            columns.append((name, _read_batched(reader.nested(at, stop))))
    # A record without fields may claim any number of datums; a bound keeps hostile bytes from
    # filling memory.
    _expect(0 <= count <= 1_000_000, f"a record of {count} datums")
    for name, column in columns:
        _expect(
            len(column) == count, f"field {name!r} has {len(column)} entries for {count} datums"
        )
    return [{name: column[index] for name, column in columns} for index in range(count)]


def _read_batched(reader: _Reader) -> list[TensorData]:
    numbers, spans = reader.last()
    dtype, (start, end) = numbers[pb.BATCHED_TENSOR_DTYPE], spans[pb.BATCHED_TENSOR_DATA]
    values = _values(reader, start, end, dtype)
    itemsize = _ITEMSIZE[dtype]
    bounds = reader.array(*spans[pb.BATCHED_TENSOR_OFFSETS], _INT64_DTYPE)
    _check_offsets(bounds, end - start, itemsize)
    inner = reader.integers(pb.BATCHED_TENSOR_TRAILING_SHAPE)
    _expect(all(dimension > 0 for dimension in inner), "trailing dimensions must be positive")
    cuts = (bounds // itemsize).tolist()
    try:
        if inner:
            return [
                TensorData.from_numpy(values[a:b].reshape(-1, *inner))
                for a, b in itertools.pairwise(cuts)
            ]
        return [wrap(values[a:b]) for a, b in itertools.pairwise(cuts)]
    except ValueError as error:
        raise ProtoError(f"bad batched tensor: {error}") from error


def _check_offsets(bounds: NDArray[Any], nbytes: int, itemsize: int) -> None:
    if len(bounds) == 0:
        return
    fits = bounds[0] >= 0 and bounds[-1] <= nbytes and bool((np.diff(bounds) >= 0).all())
    _expect(bool(fits and not (bounds % itemsize).any()), "offsets do not fit the data")


def decode_sample(body: bytes, sequence_ids: Sequence[str] = ()) -> SampleResponse:
    """Read a ``SampleResponse``; ``sequence_ids`` come from the submit response and
    may be missing.
    """
    buffer = bytearray(body)
    reader = _Reader(buffer)
    sequences: list[SampledSequence] = []
    rest: dict[str, Any] = {}
    for field, wire_type, start, end in reader.fields():
        if field == pb.SAMPLE_RESPONSE_SEQUENCES and wire_type == _LEN:
            sequence = _read_usual_sequence(buffer, start, end) or _read_sequence(
                reader.nested(start, end)
            )
            name = sequence_ids[len(sequences)] if len(sequences) < len(sequence_ids) else None
            object.__setattr__(sequence, "sequence_id", name)  # a value that nobody has seen yet
            sequences.append(sequence)
        elif field == pb.SAMPLE_RESPONSE_PROMPT_LOGPROBS and wire_type == _LEN:
            rest["prompt_logprobs_np"] = (
                reader.array(start, end, _FLOAT32_DTYPE) if end > start else None
            )
        elif field == pb.SAMPLE_RESPONSE_TOPK_PROMPT_LOGPROBS and wire_type == _LEN:
            rest["topk_prompt_logprobs_np"] = _read_topk(reader.nested(start, end))
        elif field == pb.SAMPLE_RESPONSE_PROMPT_CACHE_HIT_TOKENS and wire_type == _VARINT:
            rest["prompt_cache_hit_tokens"] = _to_signed(start)
        elif field == pb.SAMPLE_RESPONSE_TARGET_PROMPT_LOGPROBS and wire_type == _LEN:
            rest["target_prompt_logprobs"] = _read_tensor(reader.nested(start, end))
        elif field == pb.SAMPLE_RESPONSE_PROMPT_ALT_TOKENS and wire_type == _LEN:
            rest["prompt_alt_tokens"] = _read_alternatives(reader.nested(start, end))
    return SampleResponse(sequences, **rest)


def _read_usual_sequence(buffer: bytearray, at: int, end: int) -> SampledSequence | None:
    """Return a sequence laid out as servers do: stop reason unless it is zero, tokens, logprobs,
    each of up to 16 kB.

    None for any other layout, which is read the general way. Responses hold thousands of these.
    """
    if end - at < 5:
        return None
    reason = "stop"
    if buffer[at] == _REASON_KEY:
        reason = _stop_reason(buffer[at + 1])
        at += 2
    found: list[NDArray[Any]] = []
    for key, dtype in _USUAL_KEYS:
        if end - at < 3 or buffer[at] != key:
            return None
        low, high = buffer[at + 1], buffer[at + 2]
        if low < 0x80:
            nbytes, at = low, at + 2
        elif high < 0x80:
            nbytes, at = low & 0x7F | high << 7, at + 3
        else:
            return None
        if nbytes > end - at or nbytes & 3 or nbytes == 0:
            return None
        found.append(np.frombuffer(buffer, dtype, nbytes >> 2, at))
        at += nbytes
    return SampledSequence.of_arrays(reason, None, found[0], found[1], None) if at == end else None


def _read_sequence(reader: _Reader) -> SampledSequence:
    numbers, spans = reader.last()
    start, end = spans[pb.SAMPLED_SEQUENCE_LOGPROBS]
    return SampledSequence.of_arrays(
        _stop_reason(numbers[pb.SAMPLED_SEQUENCE_STOP_REASON]),
        None,
        reader.array(*spans[pb.SAMPLED_SEQUENCE_TOKENS], _INT32_DTYPE),
        reader.array(start, end, _FLOAT32_DTYPE) if end > start else None,
        _read_topk(reader.nested(*spans[pb.SAMPLED_SEQUENCE_TOPK_SAMPLED_LOGPROBS])),
    )


def _stop_number(reason: str) -> int:
    """Return the number of a stop reason: of a known one, or one that was read as its number.
    ValueError for any other.
    """
    if (number := pb.STOP_REASON.get(reason)) is not None:
        return number
    if reason.isdecimal():
        return int(reason)
    known = ", ".join(map(repr, pb.STOP_REASON))
    raise ValueError(
        f"stop_reason {reason!r} has no number in protobuf, which knows {known}; send it as JSON"
    )


def _stop_reason(value: int) -> str:
    """Return the stop reason; a value this client does not know stays readable as its number."""
    return _STOP_REASONS.get(value) or str(value)


def _read_topk(reader: _Reader) -> TopkLogprobs | None:
    numbers, spans = reader.last()
    ids = reader.array(*spans[pb.TOPK_LOGPROBS_TOKEN_IDS], _INT32_DTYPE)
    logprobs = reader.array(*spans[pb.TOPK_LOGPROBS_LOGPROBS], _FLOAT32_DTYPE)
    k, length = numbers[pb.TOPK_LOGPROBS_K], numbers[pb.TOPK_LOGPROBS_LENGTH]
    if k == 0 or length == 0:
        return None
    _expect(
        k * length == ids.size == logprobs.size,
        f"a top-k table of {length} x {k} with {ids.size} cells",
    )
    return TopkLogprobs(ids.reshape(length, k), logprobs.reshape(length, k))


def _read_alternatives(reader: _Reader) -> PromptAltTokens:
    _, spans = reader.last()
    fields = pb.PROMPT_ALT_TOKENS_TOKENS, pb.PROMPT_ALT_TOKENS_LOGPROBS
    _expect(all(field in spans for field in fields), "alternative tokens without ids or logprobs")
    tokens, logprobs = (_read_tensor(reader.nested(*spans[field])) for field in fields)
    return PromptAltTokens(tokens=tokens, logprobs=logprobs)
