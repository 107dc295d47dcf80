"""The protobuf messages of tinker_public.proto, for the memory of arrays; made by `python -m codegen generate`.

Functions that write return parts: small headers and views of the caller's arrays, never joined here. Functions that read
return arrays that view one private copy of the message.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from tinker._wire.proto_values import ForwardBackwardCall as ForwardBackwardCall
from tinker._wire.proto_values import ProtoError as ProtoError
from tinker._wire.proto_values import (
    SparseCsr,
    make_array_record,
    make_batched_tensor,
    make_datum,
    make_forward_backward_output,
    make_forward_backward_request,
    make_prompt_alt_tokens,
    make_tensor,
    make_topk_logprobs,
    refuse_chunk,
    take_array_record,
    take_batched_tensor,
    take_forward_backward_output,
    take_tensor,
    take_topk_logprobs,
)
from tinker.types import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ForwardBackwardOutput,
    ImageChunk,
    LossFnOutput,
    ModelInputChunk,
    PromptAltTokens,
    PromptProvenanceSpan,
    ProvenanceSpan,
    SampledProvenanceSpan,
    SampledSequence,
    SampleResponse,
    TensorData,
    TopkLogprobs,
)
from tinker.types._values import np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tinker_wire import models

    from tinker.types.tensor_data import NumericArray

Part: TypeAlias = bytes | memoryview
MEDIA_TYPE: Final = "application/x-protobuf"

_STOP_REASON = {
    "stop": 0,
    "length": 1,
}
_STOP_REASON_NAMES = {number: name for name, number in _STOP_REASON.items()}
_DTYPE = {
    "unspecified": 0,
    "float32": 1,
    "int64": 2,
    "int32": 3,
    "bfloat16": 4,
}
_DTYPE_NAMES = {number: name for name, number in _DTYPE.items()}
_ARRAYS = {
    _DTYPE["int32"]: "<i4",
    _DTYPE["int64"]: "<i8",
    _DTYPE["float32"]: "<f4",
    _DTYPE["bfloat16"]: "<u2",
}
_NOTHING = (0, 0)
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5  # wire types
_LARGEST = 0xFFFFFFFFFFFFFFFF


# ------------------------------------------------------------------------------------------------------------ writing


def _varint(value: int) -> bytes:
    if value < 0:
        value += 1 << 64  # negative int32 and int64 travel as ten-byte two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(key: bytes, value: int) -> bytes:
    return key + _varint(value) if value else b""


def _blob(key: bytes, value: bytes) -> bytes:
    return key + _varint(len(value)) + value


def _text(key: bytes, value: str) -> bytes:
    return _blob(key, value.encode()) if value else b""


def _integers(key: bytes, values: Sequence[int] | None) -> bytes:
    return b"" if values is None else _blob(key, b"".join(map(_varint, values)))


_pack_double = struct.Struct("<d").pack


def _find_number(field: str, known: Mapping[str, int], name: str) -> int:
    """Return the number of a name: of a known one, or one that was read as its number. ValueError for any other."""
    if (number := known.get(name)) is not None:
        return number
    if name.isdecimal():
        return int(name)
    names = ", ".join(map(repr, known))
    raise ValueError(f"{field} {name!r} has no number in protobuf, which knows {names}; send it as JSON")


def _view(array: NDArray[Any]) -> memoryview:
    """Return the array's bytes, little-endian and contiguous, without a copy where it is so already."""
    if array.size == 0:
        return memoryview(b"")
    if not array.dtype.isnative and array.dtype.byteorder != "<":
        array = array.astype(array.dtype.newbyteorder("<"))
    try:
        return array.data.cast("B")
    except TypeError:  # which is faster than to ask whether it is contiguous
        return np.ascontiguousarray(array).data.cast("B")


def _array(key: bytes, values: NDArray[Any] | list[NDArray[Any]] | None) -> list[Part]:
    """Return the parts of an array, or of several in one field."""
    if values is None:
        return []
    views = list(map(_view, values)) if isinstance(values, list) else [_view(values)]
    return [key + _varint(sum(map(len, views))), *views]


def _nested(key: bytes, parts: list[Part]) -> list[Part]:
    return [key + _varint(sum(map(len, parts))), *parts]


# Most values of a body have the same names and shapes, so what stands in front of their arrays is made once.


@lru_cache(maxsize=1024)
def _head_of_model_input(nbytes: int) -> bytes:
    """Return everything before the values of `EncodedTextChunk.tokens` in `Datum.model_input`."""
    head = b"\x0a" + _varint(nbytes)
    head = b"\x0a" + _varint(len(head) + nbytes) + head
    return b"\x0a" + _varint(len(head) + nbytes) + head


@lru_cache(maxsize=1024)
def _head_of_loss_fn_inputs(name: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> bytes:
    """Return everything before the values of `Tensor.dense` in `Datum.loss_fn_inputs`."""
    head = b"".join(
        (_number(b"\x18", _find_number("dtype", _DTYPE, dtype)), _integers(b"\x22", shape), b"\x0a" + _varint(nbytes))
    )
    head = _text(b"\x0a", name) + b"\x12" + _varint(len(head) + nbytes) + head
    return b"\x12" + _varint(len(head) + nbytes) + head


def _write_loss_config_value(value: float | str) -> list[Part]:
    if isinstance(value, str):
        return [_blob(b"\x12", value.encode())]
    return [b"\x09" + _pack_double(value)]


def _write_encoded_text_chunk(value: EncodedTextChunk) -> list[Part]:
    parts: list[Part] = []
    parts += _array(b"\x0a", value.array)
    return parts


def _write_image_chunk(value: ImageChunk) -> list[Part]:
    parts: list[Part] = []
    parts.append(_text(b"\x12", value.format))
    parts.append(b"" if value.expected_tokens is None else b"\x18" + _varint(value.expected_tokens))
    parts.append(_blob(b"\x0a", value.data))
    return parts


def _write_dmel_chunk(value: DmelChunk) -> list[Part]:
    parts: list[Part] = []
    parts.append(_blob(b"\x0a", value.dmel))
    return parts


def _write_chunk(value: ModelInputChunk) -> list[Part]:
    if isinstance(value, EncodedTextChunk):
        return _nested(b"\x0a", _write_encoded_text_chunk(value))
    if isinstance(value, ImageChunk):
        return _nested(b"\x12", _write_image_chunk(value))
    if isinstance(value, DmelChunk):
        return _nested(b"\x1a", _write_dmel_chunk(value))
    refuse_chunk(value)


def _write_sparse_csr(value: SparseCsr) -> list[Part]:
    parts: list[Part] = []
    parts += _array(b"\x0a", value.values)
    parts += _array(b"\x12", value.crow_indices)
    parts += _array(b"\x1a", value.col_indices)
    return parts


def _write_tensor(value: TensorData) -> list[Part]:
    parts: list[Part] = []
    dtype, shape, dense, sparse_csr = take_tensor(value)
    parts.append(_number(b"\x18", _find_number("dtype", _DTYPE, dtype)))
    parts.append(_integers(b"\x22", shape))
    parts += _array(b"\x0a", dense)
    if sparse_csr is not None:
        parts += _nested(b"\x12", _write_sparse_csr(sparse_csr))
    return parts


def _write_prompt_provenance_span(value: PromptProvenanceSpan) -> list[Part]:
    parts: list[Part] = []
    parts.append(_text(b"\x0a", value.sequence_id))
    parts.append(_number(b"\x10", value.offset))
    parts.append(_number(b"\x18", value.length))
    return parts


def _write_sampled_provenance_span(value: SampledProvenanceSpan) -> list[Part]:
    parts: list[Part] = []
    parts.append(_text(b"\x0a", value.sequence_id))
    parts.append(_number(b"\x10", value.offset))
    parts.append(_number(b"\x18", value.length))
    return parts


def _write_provenance_span(value: ProvenanceSpan) -> list[Part]:
    if isinstance(value, PromptProvenanceSpan):
        return _nested(b"\x0a", _write_prompt_provenance_span(value))
    return _nested(b"\x12", _write_sampled_provenance_span(value))


def _write_datum(value: Datum) -> list[Part]:
    parts: list[Part] = []
    for chunk in value.model_input.chunks:
        if isinstance(chunk, EncodedTextChunk):
            array = chunk.array
            parts += (_head_of_model_input(array.nbytes), _view(array))
        else:
            parts += _nested(b"\x0a", _write_chunk(chunk))
    for name, tensor in value.loss_fn_inputs.items():
        if tensor.sparse_crow_indices is None:
            values = tensor.values
            shape = tuple(tensor.shape or values.shape)
            parts += (_head_of_loss_fn_inputs(name, tensor.dtype, shape, values.nbytes), _view(values))
        else:
            parts += _nested(b"\x12", [_text(b"\x0a", name), *_nested(b"\x12", _write_tensor(tensor))])
    for provenance_span in value.model_input_spans or ():
        parts += _nested(b"\x1a", _write_provenance_span(provenance_span))
    for provenance_span in value.loss_fn_input_spans or ():
        parts += _nested(b"\x22", _write_provenance_span(provenance_span))
    return parts


def _write_batched_tensor(value: Sequence[TensorData]) -> list[Part]:
    parts: list[Part] = []
    dtype, trailing_shape, offsets, data = take_batched_tensor(value)
    parts.append(_number(b"\x18", _find_number("dtype", _DTYPE, dtype)))
    parts.append(_integers(b"\x22", trailing_shape))
    parts += _array(b"\x12", offsets)
    parts += _array(b"\x0a", data)
    return parts


def _write_array_record(value: tuple[str, list[LossFnOutput]]) -> list[Part]:
    parts: list[Part] = []
    type_tag, num_datums, fields = take_array_record(value)
    parts.append(_text(b"\x0a", type_tag))
    parts.append(_number(b"\x18", num_datums))
    for name, batched_tensor in fields.items():
        parts += _nested(b"\x12", [_text(b"\x0a", name), *_nested(b"\x12", _write_batched_tensor(batched_tensor))])
    return parts


def _write_forward_backward_output(value: ForwardBackwardOutput) -> list[Part]:
    parts: list[Part] = []
    loss_fn_output_type, loss_fn_outputs, metrics = take_forward_backward_output(value)
    parts.append(_text(b"\x0a", loss_fn_output_type))
    for array_record in loss_fn_outputs or ():
        parts += _nested(b"\x12", _write_array_record(array_record))
    for name, number in metrics.items():
        parts.append(_blob(b"\x1a", _text(b"\x0a", name) + b"\x11" + _pack_double(number)))
    return parts


def _write_topk_logprobs(value: TopkLogprobs) -> list[Part]:
    parts: list[Part] = []
    k, length, token_ids, logprobs = take_topk_logprobs(value)
    parts.append(_number(b"\x18", k))
    parts.append(_number(b"\x20", length))
    parts += _array(b"\x0a", token_ids)
    parts += _array(b"\x12", logprobs)
    return parts


def _write_sampled_sequence(value: SampledSequence) -> list[Part]:
    parts: list[Part] = []
    parts.append(_number(b"\x08", _find_number("stop_reason", _STOP_REASON, value.stop_reason)))
    parts += _array(b"\x12", value.tokens_np)
    parts += _array(b"\x1a", value.logprobs_np)
    if value.topk_logprobs_np is not None:
        parts += _nested(b"\x22", _write_topk_logprobs(value.topk_logprobs_np))
    return parts


def _write_prompt_alt_tokens(value: PromptAltTokens) -> list[Part]:
    parts: list[Part] = []
    parts += _nested(b"\x0a", _write_tensor(value.tokens))
    parts += _nested(b"\x12", _write_tensor(value.logprobs))
    return parts


def _write_sample_response(value: SampleResponse) -> list[Part]:
    parts: list[Part] = []
    for sampled_sequence in value.sequences or ():
        parts += _nested(b"\x0a", _write_sampled_sequence(sampled_sequence))
    parts += _array(b"\x12", value.prompt_logprobs_np)
    if value.topk_prompt_logprobs_np is not None:
        parts += _nested(b"\x1a", _write_topk_logprobs(value.topk_prompt_logprobs_np))
    parts.append(_number(b"\x20", value.prompt_cache_hit_tokens))
    if value.target_prompt_logprobs is not None:
        parts += _nested(b"\x2a", _write_tensor(value.target_prompt_logprobs))
    if value.prompt_alt_tokens is not None:
        parts += _nested(b"\x32", _write_prompt_alt_tokens(value.prompt_alt_tokens))
    return parts


# ------------------------------------------------------------------------------------------------------------ reading
# Every length is checked against the end of the message before anything is made of its bytes.


def _read_varint(buffer: bytearray, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _LARGEST, at
        shift += 7
        if shift > 63:
            break
    raise ProtoError("truncated or overlong number")


def _fields(buffer: bytearray, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (key, value or start, end) of each field. Numbers of one byte take a short way."""
    while at < end:
        key = buffer[at]
        at += 1
        if key > 0x7F:
            key, at = _read_varint(buffer, at - 1, end)
        wire_type = key & 7
        if key < 8:
            raise ProtoError("field number 0")
        if wire_type == _LEN:
            length, value = _read_varint(buffer, at, end) if at >= end or buffer[at] > 0x7F else (buffer[at], at + 1)
            stop = value + length
        elif wire_type == _VARINT:
            value, stop = _read_varint(buffer, at, end)
        elif wire_type in (_I64, _I32):
            value, stop = at, at + (8 if wire_type == _I64 else 4)
        else:
            raise ProtoError(f"unsupported wire type {wire_type}")
        if stop > end:
            raise ProtoError("a field reaches beyond its message")
        yield key, value, stop
        at = stop


def _read_entry(buffer: bytearray, start: int, end: int, wanted: int) -> tuple[str, int, int]:
    """Return the key of a map entry, and where its value is, which is empty if it is absent."""
    name, (value, value_end) = "", _NOTHING
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            name = _read_text(buffer, at, stop)
        elif key == wanted:
            value, value_end = at, stop
    return name, value, value_end


def _read_bytes(buffer: bytearray, start: int, end: int) -> bytes:
    return bytes(memoryview(buffer)[start:end])


def _read_text(buffer: bytearray, start: int, end: int) -> str:
    try:
        return _read_bytes(buffer, start, end).decode()
    except UnicodeDecodeError as error:
        raise ProtoError("text is not UTF-8") from error


def _read_double(buffer: bytearray, start: int) -> float:
    value: float = struct.unpack_from("<d", buffer, start)[0]
    return value


def _read_array(buffer: bytearray, start: int, end: int, dtype: str) -> NDArray[Any]:
    count, rest = divmod(end - start, int(dtype[-1]))
    if rest:
        raise ProtoError(f"{end - start} bytes are not a multiple of the size of {np.dtype(dtype)} values")
    return np.frombuffer(buffer, dtype, count, start)


def _read_values(buffer: bytearray, start: int, end: int, dtype: int) -> NumericArray:
    """Read an array in the two types that users see: bfloat16 widens to float32, int32 to int64."""
    if dtype not in _ARRAYS:
        raise ProtoError(f"unknown tensor dtype {dtype}")
    array = _read_array(buffer, start, end, _ARRAYS[dtype])
    if dtype == _DTYPE["int32"]:
        return cast("NumericArray", array.astype(np.int64))
    if dtype == _DTYPE["bfloat16"]:
        return cast("NumericArray", (array.astype(np.uint32) << 16).view(np.float32))
    return array


def _read_integers(buffer: bytearray, at: int, end: int) -> list[int]:
    """Return packed integers."""
    numbers: list[int] = []
    while at < end:
        number, at = _read_varint(buffer, at, end)
        numbers.append(_to_signed(number))
    return numbers


def _to_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _find_name(names: Mapping[int, str], number: int) -> str:
    """Return the name of a number; one that this client does not know stays readable as its number."""
    return names.get(number) or str(number)


def _refuse(error: ValueError, words: str) -> ProtoError:
    return error if isinstance(error, ProtoError) else ProtoError(f"{words}{error}")


def _read_usual_sequence(buffer: bytearray, at: int, end: int) -> SampledSequence | None:
    """Return a sequence laid out as servers do: stop reason unless it is zero, tokens, logprobs, each of up to 16 kB.

    None for any other layout, which is read the general way. Responses hold thousands of these.
    """
    if end - at < 5:
        return None
    reason = "stop"
    if buffer[at] == 8:
        reason = _find_name(_STOP_REASON_NAMES, buffer[at + 1])
        at += 2
    found: list[NDArray[Any]] = []
    for key, dtype in (
        (18, "<i4"),
        (26, "<f4"),
    ):
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


def _read_loss_config_value(buffer: bytearray, start: int, end: int) -> float | str:
    value: float | str = 0.0
    for key, at, stop in _fields(buffer, start, end):
        if key == 9:
            value = _read_double(buffer, at)
        elif key == 18:
            value = _read_text(buffer, at, stop)
    return value


def _read_encoded_text_chunk(buffer: bytearray, start: int, end: int) -> EncodedTextChunk:
    tokens = _NOTHING
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            tokens = at, stop
    return EncodedTextChunk(
        tokens=_read_array(buffer, *tokens, "<i4"),
    )


def _read_image_chunk(buffer: bytearray, start: int, end: int) -> ImageChunk:
    format = _NOTHING
    expected_tokens: int | None = None
    data = _NOTHING
    for key, at, stop in _fields(buffer, start, end):
        if key == 18:
            format = at, stop
        elif key == 24:
            expected_tokens = _to_signed(at)
        elif key == 10:
            data = at, stop
    try:
        return ImageChunk(
            format=cast("models.ImageFormat", _read_text(buffer, *format)),
            expected_tokens=expected_tokens,
            data=_read_bytes(buffer, *data),
        )
    except ValueError as error:
        raise _refuse(error, "an image: ") from error


def _read_dmel_chunk(buffer: bytearray, start: int, end: int) -> DmelChunk:
    dmel = _NOTHING
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            dmel = at, stop
    return DmelChunk(
        dmel=_read_bytes(buffer, *dmel),
    )


def _read_chunk(buffer: bytearray, start: int, end: int) -> ModelInputChunk:
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            return _read_encoded_text_chunk(buffer, at, stop)
        if key == 18:
            return _read_image_chunk(buffer, at, stop)
        if key == 26:
            return _read_dmel_chunk(buffer, at, stop)
    raise ProtoError("a chunk of no known kind")


def _read_sparse_csr(buffer: bytearray, start: int, end: int, dtype: int) -> SparseCsr:
    values = _NOTHING
    crow_indices = _NOTHING
    col_indices = _NOTHING
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            values = at, stop
        elif key == 18:
            crow_indices = at, stop
        elif key == 26:
            col_indices = at, stop
    return SparseCsr(
        values=_read_values(buffer, *values, dtype),
        crow_indices=_read_array(buffer, *crow_indices, "<i8"),
        col_indices=_read_array(buffer, *col_indices, "<i8"),
    )


def _read_tensor(buffer: bytearray, start: int, end: int) -> TensorData:
    dtype = 0
    shape: list[int] = []
    dense = _NOTHING
    sparse_csr: tuple[int, int] | None = None
    for key, at, stop in _fields(buffer, start, end):
        if key == 24:
            dtype = at
        elif key == 34:
            shape += _read_integers(buffer, at, stop)
        elif key == 32:
            shape.append(_to_signed(at))
        elif key == 10:
            dense = at, stop
            sparse_csr = None
        elif key == 18:
            sparse_csr = at, stop
            dense = _NOTHING
    try:
        return make_tensor(
            dtype=_find_name(_DTYPE_NAMES, dtype),
            shape=shape,
            dense=_read_values(buffer, *dense, dtype),
            sparse_csr=None if sparse_csr is None else _read_sparse_csr(buffer, *sparse_csr, dtype),
        )
    except ValueError as error:
        raise _refuse(error, "bad tensor: ") from error


def _read_prompt_provenance_span(buffer: bytearray, start: int, end: int) -> PromptProvenanceSpan:
    sequence_id = _NOTHING
    offset = 0
    length = 0
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            sequence_id = at, stop
        elif key == 16:
            offset = _to_signed(at)
        elif key == 24:
            length = _to_signed(at)
    try:
        return PromptProvenanceSpan(
            sequence_id=_read_text(buffer, *sequence_id),
            offset=offset,
            length=length,
        )
    except ValueError as error:
        raise _refuse(error, "") from error


def _read_sampled_provenance_span(buffer: bytearray, start: int, end: int) -> SampledProvenanceSpan:
    sequence_id = _NOTHING
    offset = 0
    length = 0
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            sequence_id = at, stop
        elif key == 16:
            offset = _to_signed(at)
        elif key == 24:
            length = _to_signed(at)
    try:
        return SampledProvenanceSpan(
            sequence_id=_read_text(buffer, *sequence_id),
            offset=offset,
            length=length,
        )
    except ValueError as error:
        raise _refuse(error, "") from error


def _read_provenance_span(buffer: bytearray, start: int, end: int) -> ProvenanceSpan:
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            return _read_prompt_provenance_span(buffer, at, stop)
        if key == 18:
            return _read_sampled_provenance_span(buffer, at, stop)
    raise ProtoError("a provenance span of no known kind")


def _read_datum(buffer: bytearray, start: int, end: int) -> Datum:
    model_input: list[ModelInputChunk] = []
    loss_fn_inputs: dict[str, TensorData] = {}
    model_input_spans: list[ProvenanceSpan] = []
    loss_fn_input_spans: list[ProvenanceSpan] = []
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            model_input.append(_read_chunk(buffer, at, stop))
        elif key == 18:
            name, at, stop = _read_entry(buffer, at, stop, 18)
            loss_fn_inputs[name] = _read_tensor(buffer, at, stop)
        elif key == 26:
            model_input_spans.append(_read_provenance_span(buffer, at, stop))
        elif key == 34:
            loss_fn_input_spans.append(_read_provenance_span(buffer, at, stop))
    return make_datum(
        model_input=model_input,
        loss_fn_inputs=loss_fn_inputs,
        model_input_spans=model_input_spans,
        loss_fn_input_spans=loss_fn_input_spans,
    )


def _read_forward_backward_request(buffer: bytearray, start: int, end: int) -> ForwardBackwardCall:
    model_id = ""
    seq_id = 0
    loss_fn = ""
    forward_only = 0
    loss_fn_config: dict[str, float] = {}
    loss_fn_config_v2: dict[str, float | str] = {}
    data: list[Datum] = []
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            model_id = _read_text(buffer, at, stop)
        elif key == 16:
            seq_id = _to_signed(at)
        elif key == 34:
            loss_fn = _read_text(buffer, at, stop)
        elif key == 48:
            forward_only = at
        elif key == 42:
            name, at, stop = _read_entry(buffer, at, stop, 17)
            loss_fn_config[name] = _read_double(buffer, at) if stop else 0.0
        elif key == 58:
            name, at, stop = _read_entry(buffer, at, stop, 18)
            loss_fn_config_v2[name] = _read_loss_config_value(buffer, at, stop)
        elif key == 26:
            data.append(_read_datum(buffer, at, stop))
    return make_forward_backward_request(
        model_id=model_id,
        seq_id=seq_id,
        loss_fn=loss_fn,
        forward_only=bool(forward_only),
        loss_fn_config=loss_fn_config,
        loss_fn_config_v2=loss_fn_config_v2,
        data=data,
    )


def _read_batched_tensor(buffer: bytearray, start: int, end: int) -> list[TensorData]:
    dtype = 0
    trailing_shape: list[int] = []
    offsets = _NOTHING
    data = _NOTHING
    for key, at, stop in _fields(buffer, start, end):
        if key == 24:
            dtype = at
        elif key == 34:
            trailing_shape += _read_integers(buffer, at, stop)
        elif key == 32:
            trailing_shape.append(_to_signed(at))
        elif key == 18:
            offsets = at, stop
        elif key == 10:
            data = at, stop
    try:
        return make_batched_tensor(
            dtype=_find_name(_DTYPE_NAMES, dtype),
            trailing_shape=trailing_shape,
            offsets=_read_array(buffer, *offsets, "<i8"),
            data=_read_values(buffer, *data, dtype),
        )
    except ValueError as error:
        raise _refuse(error, "bad batched tensor: ") from error


def _read_array_record(buffer: bytearray, start: int, end: int) -> list[LossFnOutput]:
    num_datums = 0
    fields: dict[str, list[TensorData]] = {}
    for key, at, stop in _fields(buffer, start, end):
        if key == 24:
            num_datums = _to_signed(at)
        elif key == 18:
            name, at, stop = _read_entry(buffer, at, stop, 18)
            fields[name] = _read_batched_tensor(buffer, at, stop)
    return make_array_record(
        num_datums=num_datums,
        fields=fields,
    )


def _read_forward_backward_output(buffer: bytearray, start: int, end: int) -> ForwardBackwardOutput:
    loss_fn_output_type = ""
    loss_fn_outputs: list[list[LossFnOutput]] = []
    metrics: dict[str, float] = {}
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            loss_fn_output_type = _read_text(buffer, at, stop)
        elif key == 18:
            loss_fn_outputs.append(_read_array_record(buffer, at, stop))
        elif key == 26:
            name, at, stop = _read_entry(buffer, at, stop, 17)
            metrics[name] = _read_double(buffer, at) if stop else 0.0
    return make_forward_backward_output(
        loss_fn_output_type=loss_fn_output_type,
        loss_fn_outputs=loss_fn_outputs,
        metrics=metrics,
    )


def _read_topk_logprobs(buffer: bytearray, start: int, end: int) -> TopkLogprobs | None:
    k = 0
    length = 0
    token_ids = _NOTHING
    logprobs = _NOTHING
    for key, at, stop in _fields(buffer, start, end):
        if key == 24:
            k = at
        elif key == 32:
            length = at
        elif key == 10:
            token_ids = at, stop
        elif key == 18:
            logprobs = at, stop
    return make_topk_logprobs(
        k=k,
        length=length,
        token_ids=_read_array(buffer, *token_ids, "<i4"),
        logprobs=_read_array(buffer, *logprobs, "<f4"),
    )


def _read_sampled_sequence(buffer: bytearray, start: int, end: int) -> SampledSequence:
    stop_reason = 0
    tokens = _NOTHING
    logprobs = _NOTHING
    topk_sampled_logprobs: tuple[int, int] | None = None
    for key, at, stop in _fields(buffer, start, end):
        if key == 8:
            stop_reason = at
        elif key == 18:
            tokens = at, stop
        elif key == 26:
            logprobs = at, stop
        elif key == 34:
            topk_sampled_logprobs = at, stop
    return SampledSequence(
        stop_reason=_find_name(_STOP_REASON_NAMES, stop_reason),
        tokens_np=_read_array(buffer, *tokens, "<i4"),
        logprobs_np=_read_array(buffer, *logprobs, "<f4") if logprobs[0] < logprobs[1] else None,
        topk_logprobs_np=None if topk_sampled_logprobs is None else _read_topk_logprobs(buffer, *topk_sampled_logprobs),
    )


def _read_prompt_alt_tokens(buffer: bytearray, start: int, end: int) -> PromptAltTokens:
    tokens: tuple[int, int] | None = None
    logprobs: tuple[int, int] | None = None
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            tokens = at, stop
        elif key == 18:
            logprobs = at, stop
    return make_prompt_alt_tokens(
        tokens=None if tokens is None else _read_tensor(buffer, *tokens),
        logprobs=None if logprobs is None else _read_tensor(buffer, *logprobs),
    )


def _read_sample_response(buffer: bytearray, start: int, end: int) -> SampleResponse:
    sequences: list[SampledSequence] = []
    prompt_logprobs: NDArray[Any] | None = None
    topk_prompt_logprobs: TopkLogprobs | None = None
    prompt_cache_hit_tokens = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens: PromptAltTokens | None = None
    for key, at, stop in _fields(buffer, start, end):
        if key == 10:
            sequences.append(_read_usual_sequence(buffer, at, stop) or _read_sampled_sequence(buffer, at, stop))
        elif key == 18:
            prompt_logprobs = _read_array(buffer, at, stop, "<f4") if stop > at else None
        elif key == 26:
            topk_prompt_logprobs = _read_topk_logprobs(buffer, at, stop)
        elif key == 32:
            prompt_cache_hit_tokens = _to_signed(at)
        elif key == 42:
            target_prompt_logprobs = _read_tensor(buffer, at, stop)
        elif key == 50:
            prompt_alt_tokens = _read_prompt_alt_tokens(buffer, at, stop)
    return SampleResponse(
        sequences=sequences,
        prompt_logprobs_np=prompt_logprobs,
        topk_prompt_logprobs_np=topk_prompt_logprobs,
        prompt_cache_hit_tokens=prompt_cache_hit_tokens,
        target_prompt_logprobs=target_prompt_logprobs,
        prompt_alt_tokens=prompt_alt_tokens,
    )


# ------------------------------------------------------------------------------------------------------------- bodies


def split_fields(body: bytes) -> list[bytes]:
    """Split a message into its fields."""
    ends = [0, *(end for *_, end in _fields(bytearray(body), 0, len(body)))]
    return [body[start:end] for start, end in itertools.pairwise(ends)]


@lru_cache(maxsize=1024)
def _head_of_data(nbytes: int) -> bytes:
    return b"\x1a" + _varint(nbytes)


def encode_data(values: Sequence[Datum]) -> list[Part]:
    """Return the parts of `ForwardBackwardRequest.data`; no other field is needed, so it can be done before the request's turn."""
    parts: list[Part] = []
    for index, value in enumerate(values):
        try:
            written = _write_datum(value)
        except ValueError as error:
            raise ValueError(f"data[{index}]: {error}") from error
        parts.append(_head_of_data(sum(map(len, written))))
        parts += written
    return parts


def encode_forward_backward(
    model_id: str,
    seq_id: int,
    data: Sequence[Datum],
    loss_fn: str,
    loss_fn_config: Mapping[str, float | str] | None = None,
    *,
    forward_only: bool = False,
) -> list[Part]:
    """Return the parts of a `ForwardBackwardRequest`; the arrays are viewed, not copied."""
    head = forward_backward_head(
        model_id,
        seq_id,
        loss_fn,
        loss_fn_config,
        forward_only=forward_only,
    )
    return head + encode_data(data)


def forward_backward_head(
    model_id: str,
    seq_id: int,
    loss_fn: str,
    config: Mapping[str, float | str] | None,
    *,
    forward_only: bool = False,
) -> list[Part]:
    """Return every field but `data`. Numbers of the config are written to both maps, text to the newer one only."""
    parts: list[Part] = [
        _text(b"\x0a", model_id),
        _number(b"\x10", seq_id),
        _text(b"\x22", loss_fn),
        _number(b"\x30", forward_only),
    ]
    for name, item in (config or {}).items():
        key = _text(b"\x0a", name)
        if not isinstance(item, str):
            parts.append(_blob(b"\x2a", key + b"\x11" + _pack_double(item)))
        parts += _nested(b"\x3a", [key, *_nested(b"\x12", _write_loss_config_value(item))])
    return [b"".join(parts)]


def decode_forward_backward(body: bytes) -> ForwardBackwardCall:
    """Read a `ForwardBackwardRequest`. ProtoError when the bytes are not one."""
    buffer = bytearray(body)
    for _ in _fields(buffer, 0, len(buffer)):
        pass  # it is complete before anything is made of it
    return _read_forward_backward_request(buffer, 0, len(buffer))


def encode_loss_output(value: ForwardBackwardOutput) -> bytes:
    """Return a `ForwardBackwardOutput`."""
    return b"".join(_write_forward_backward_output(value))


def decode_loss_output(body: bytes) -> ForwardBackwardOutput:
    """Read a `ForwardBackwardOutput`. ProtoError when the bytes are not one."""
    buffer = bytearray(body)
    return _read_forward_backward_output(buffer, 0, len(buffer))


def encode_sample(value: SampleResponse) -> bytes:
    """Return a `SampleResponse`."""
    return b"".join(_write_sample_response(value))


def decode_sample(body: bytes, sequence_ids: Sequence[str] = ()) -> SampleResponse:
    """Read a `SampleResponse`; `sequence_ids` come from the submit response and may be missing."""
    value = _read_sample_response(bytearray(body), 0, len(body))
    for sequence, name in zip(value.sequences, sequence_ids, strict=False):
        object.__setattr__(sequence, "sequence_id", name)  # a value that nobody has seen yet
    return value
