"""The protobuf codec, compared with Google's runtime and with recordings, and on invalid bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import recordings
from support.message_strategies import configs, datums, dense, names, tensors

from tinker._wire import proto
from tinker.types import (
    Datum,
    ForwardBackwardOutput,
    ModelInput,
    PromptAltTokens,
    SampledSequence,
    SampleResponse,
    TensorData,
    TopkLogprobs,
)


def same_tensor(one: TensorData, other: TensorData) -> bool:
    return (
        one.dtype == other.dtype
        and one.to_numpy().shape == other.to_numpy().shape
        and one.values.tobytes() == other.values.tobytes()
        and one.sparse_crow_indices == other.sparse_crow_indices
        and one.sparse_col_indices == other.sparse_col_indices
    )


def same_datum(one: Datum, other: Datum) -> bool:
    return (
        one.model_input == other.model_input
        and one.loss_fn_inputs.keys() == other.loss_fn_inputs.keys()
        and all(
            same_tensor(one.loss_fn_inputs[name], other.loss_fn_inputs[name])
            for name in one.loss_fn_inputs
        )
        and one.model_input_spans == other.model_input_spans
        and one.loss_fn_input_spans == other.loss_fn_input_spans
    )


@settings(max_examples=150, deadline=None)
@given(
    data=st.lists(datums(), max_size=3),
    number=st.integers(1, 2**31 - 1),
    config=configs,
    forward_only=st.booleans(),
)
def test_request_is_what_googles_runtime_reads_and_writes(
    messages: dict[str, Any],
    data: list[Datum],
    number: int,
    config: dict[str, float | str],
    forward_only: bool,
) -> None:
    """A request is parsed by Google's runtime, and what that writes is read back unchanged."""
    body = b"".join(
        proto.encode_forward_backward("m:1", number, data, "ppo", config, forward_only=forward_only)
    )
    parsed = messages["ForwardBackwardRequest"].FromString(body)
    assert (parsed.model_id, parsed.seq_id, parsed.loss_fn) == ("m:1", number, "ppo")
    assert parsed.forward_only == forward_only
    numbers = {name: value for name, value in config.items() if not isinstance(value, str)}
    assert dict(parsed.loss_fn_config) == numbers
    again = proto.decode_forward_backward(parsed.SerializeToString())
    assert again.loss_fn_config == config
    assert len(again.data) == len(data)
    assert all(same_datum(one, other) for one, other in zip(data, again.data, strict=True))


outputs = st.lists(
    st.dictionaries(st.sampled_from(["logprobs", "values"]), tensors, min_size=1, max_size=2),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(outputs=outputs, metrics=st.dictionaries(names, st.floats(allow_nan=False), max_size=3))
def test_loss_output_survives_googles_runtime(
    messages: dict[str, Any], outputs: list[dict[str, TensorData]], metrics: dict[str, float]
) -> None:
    """Ragged outputs of several dtypes and shapes are read back after Google's runtime."""
    body = proto.encode_loss_output(ForwardBackwardOutput("a.b:Loss", outputs, metrics))
    again = proto.decode_loss_output(
        messages["ForwardBackwardOutput"].FromString(body).SerializeToString()
    )
    assert again.loss_fn_output_type == "Loss"
    assert again.metrics == metrics
    for one, other in zip(outputs, again.loss_fn_outputs, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            np.testing.assert_array_equal(np.atleast_1d(tensor.to_numpy()), other[name].to_numpy())


def test_every_field_of_a_sample_response_is_read(messages: dict[str, Any]) -> None:
    """A response with every field set is read with its values, sentinels and None for NaN."""
    ids = np.asarray([[7, 0], [8, 9]], np.int32)
    table = TopkLogprobs(ids, np.asarray([[-1.0, -99999.0], [-2.0, -3.0]], np.float32))
    full = SampleResponse(
        sequences=[
            SampledSequence(
                "length", tokens=[1, 2], logprobs=[-0.5, -0.25], topk_logprobs_np=table
            ),
            SampledSequence("stop", tokens=[]),
        ],
        prompt_logprobs_np=np.asarray([np.nan, -1.5], np.float32),
        topk_prompt_logprobs_np=table,
        target_prompt_logprobs=TensorData([-2.5], "float32", [1, 4], [0, 1], [2]),
        prompt_cache_hit_tokens=3,
        prompt_alt_tokens=PromptAltTokens(
            tokens=TensorData([[5]], "int64", [1, 1]),
            logprobs=TensorData([[-0.5]], "float32", [1, 1]),
        ),
    )
    message = messages["SampleResponse"].FromString(proto.encode_sample(full))
    read = proto.decode_sample(message.SerializeToString(), ["a", "b"])
    found = [(s.stop_reason, s.sequence_id, s.tokens, s.logprobs) for s in read.sequences]
    assert found == [("length", "a", [1, 2], [-0.5, -0.25]), ("stop", "b", [], None)]
    rows = [[(7, -1.0)], [(8, -2.0), (9, -3.0)]]
    assert read.sequences[0].topk_logprobs == read.topk_prompt_logprobs == rows
    assert read.prompt_logprobs == [None, -1.5]
    assert read.prompt_cache_hit_tokens == 3
    assert read.target_prompt_logprobs is not None
    assert read.target_prompt_logprobs.tolist() == [[0.0, 0.0, -2.5, 0.0]]
    assert read.prompt_alt_tokens is not None
    assert read.prompt_alt_tokens.tokens.tolist() == [[5]]


def test_bfloat16_and_int32_widen(messages: dict[str, Any]) -> None:
    """bfloat16 becomes float32 and int32 int64; a record without fields counts its datums."""
    output = messages["ForwardBackwardOutput"]()
    record = output.loss_fn_outputs.add(num_datums=2)
    half, whole = record.fields["half"], record.fields["whole"]
    half.dtype, half.data = 4, np.asarray([0x3F80, 0xC000, 0x3F00], "<u2").tobytes()
    half.offsets = np.asarray([0, 4, 6], "<i8").tobytes()
    whole.dtype, whole.data = 3, np.asarray([1, -2], "<i4").tobytes()
    whole.offsets = np.asarray([0, 4, 8], "<i8").tobytes()
    output.loss_fn_outputs.add(num_datums=3)  # a record without fields counts, too
    read = proto.decode_loss_output(output.SerializeToString())
    first, second, *rest = read.loss_fn_outputs
    assert [one["half"].tolist() for one in (first, second)] == [[1.0, -2.0], [0.5]]
    assert [one["whole"].tolist() for one in (first, second)] == [[1], [-2]]
    assert (first["half"].dtype, first["whole"].dtype) == ("float32", "int64")
    assert (rest, read.loss_fn_output_type) == ([{}, {}, {}], "ArrayRecord")


def test_results_are_writable() -> None:
    """Arrays of a result can be changed in place, although they view the received bytes."""
    output = ForwardBackwardOutput("x", [{"logprobs": dense("float32", [1.0, 2.0])}])
    read = proto.decode_loss_output(proto.encode_loss_output(output))
    array = read.loss_fn_outputs[0]["logprobs"].to_numpy()
    array[0] = 5.0
    assert array.tolist() == [5.0, 2.0]


def array_nbytes(value: object) -> int:
    """Return the bytes of all arrays in a decoded message."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, TensorData):
        return value.values.nbytes
    if isinstance(value, dict | list | tuple):
        return sum(map(array_nbytes, value.values() if isinstance(value, dict) else value))
    fields = getattr(value, "__dict__", None) or {
        name: getattr(value, name) for name in getattr(value, "__slots__", ())
    }
    return array_nbytes(fields) if fields and type(value).__module__.startswith("tinker") else 0


def read_or_refused(body: bytes, which: int) -> None:
    """Check that the message is read into arrays of about its size, or refused with ProtoError."""
    try:
        message = READERS[which](body)
    except proto.ProtoError:
        return
    assert isinstance(message, MESSAGES[which])
    assert array_nbytes(message) <= 8 * len(body)


def test_arrays_of_a_message_are_found() -> None:
    """The size measure of the next tests includes the arrays of every kind of message."""
    sampled = SampleResponse([SampledSequence("stop", tokens=[1, 2], logprobs=[0.5, 0.5])])
    assert array_nbytes(proto.decode_sample(proto.encode_sample(sampled))) == 16
    data = [Datum(ModelInput.from_ints([1, 2]))]
    body = b"".join(proto.encode_forward_backward("m", 1, data, "ppo", {}))
    assert array_nbytes(proto.decode_forward_backward(body)) == 8
    output = ForwardBackwardOutput("x", [{"l": dense("float32", [1.0])}], {})
    assert array_nbytes(proto.decode_loss_output(proto.encode_loss_output(output))) == 4


MESSAGES = [proto.ForwardBackwardCall, ForwardBackwardOutput, SampleResponse]
READERS = [proto.decode_forward_backward, proto.decode_loss_output, proto.decode_sample]


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=200), which=st.integers(0, 2))
def test_arbitrary_bytes_raise_proto_error_or_are_read(body: bytes, which: int) -> None:
    """No bytes make a decoder raise anything but ProtoError, or create large arrays."""
    read_or_refused(body, which)


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, 400),
    value=st.integers(0, 255),
    cut=st.integers(0, 400),
    which=st.integers(0, 2),
)
def test_damaged_messages_raise_proto_error_or_are_read(
    at: int, value: int, cut: int, which: int
) -> None:
    """A message that is truncated, or has a byte changed, is read or refused with ProtoError."""
    datum = Datum(
        ModelInput.from_ints([1, 2]),
        {"weights": [1.0, 0.5], "target_tokens": TensorData([3], "int64", [2, 2], [0, 1, 1], [0])},
    )  # type: ignore[dict-item]
    topk = TopkLogprobs(np.ones((1, 2), np.int32), np.ones((1, 2), np.float32))
    sequence = SampledSequence("stop", tokens=[1], logprobs=[0.5], topk_logprobs_np=topk)
    output = ForwardBackwardOutput("x", [{"l": dense("float32", [1.0])}], {"loss:sum": 1.0})
    bodies = [
        b"".join(proto.encode_forward_backward("m", 1, [datum], "ppo", {"a": 1.0, "b": "x"})),
        proto.encode_loss_output(output),
        proto.encode_sample(SampleResponse([sequence], topk_prompt_logprobs_np=topk)),
    ]
    body = bytearray(bodies[which])
    body[at % len(body)] = value
    read_or_refused(bytes(body[: len(body) - cut % 3]), which)


def recorded(message: str) -> list[Any]:
    """Return the decoded form and the bytes of every recorded body of a message."""
    found = [
        pytest.param(decoded, content, id=place)
        for place, name, decoded, content in recordings.messages()
        if name == message
    ]
    assert found
    return found


@pytest.mark.parametrize(("decoded", "body"), recorded("ForwardBackwardRequest"))
def test_recorded_spans_are_read(decoded: dict[str, Any], body: bytes) -> None:
    """Every recorded span has the recorded sequence, offset and length."""
    call = proto.decode_forward_backward(body)
    for datum, expected in zip(call.data, decoded["data"], strict=True):
        for name in ("model_input_spans", "loss_fn_input_spans"):
            spans = [fields for one in expected.get(name, []) for fields in one.values()]
            told = [{"offset": 0, **fields} for fields in spans]
            assert [one.model_dump() for one in getattr(datum, name) or []] == told


@pytest.mark.parametrize(("decoded", "body"), recorded("SampleResponse"))
def test_recorded_tables_are_read(decoded: dict[str, Any], body: bytes) -> None:
    """Every recorded top-k table has a row for each position, and a column for each rank."""
    response = proto.decode_sample(body)
    tables = [(response.topk_prompt_logprobs_np, decoded.get("topk_prompt_logprobs"))]
    for one, told in zip(response.sequences, decoded.get("sequences", []), strict=True):
        tables.append((one.topk_logprobs_np, told.get("topk_sampled_logprobs")))
    for table, told in tables:
        assert (table is None) == (told is None)
        if table is not None:
            assert table.token_ids.shape == (told["length"], told["k"])
            assert table.token_ids.flatten().tolist() == told["token_ids_int32"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\x1a\x02\x0a\x00", "a chunk of no known kind"),
        (b"\x1a\x04\x0a\x02\x22\x00", "a chunk of no known kind"),
        (b"\x1a\x09\x0a\x07\x12\x05\x12\x03gif", "an image: format must be one of png, jpeg, got"),
        (b"\x1a\x02\x1a\x00", "a provenance span of no known kind"),
        (b"\x1a\x04\x1a\x02\x1a\x00", "a provenance span of no known kind"),
    ],
)
def test_unknown_kinds_are_refused(body: bytes, words: str) -> None:
    """A datum with a part unknown to this version is refused, not read without it."""
    with pytest.raises(proto.ProtoError, match=words):
        proto.decode_forward_backward(body)


def test_stop_reasons() -> None:
    """A stop reason is read as it was written, also an unknown number; others are refused."""
    for reason in ("stop", "length", "7"):
        body = proto.encode_sample(SampleResponse([SampledSequence(reason, tokens=[1])]))
        assert proto.decode_sample(body, ["a"]).sequences[0].stop_reason == reason
    response = SampleResponse([SampledSequence("content_filter", tokens=[1])])
    words = "stop_reason 'content_filter' has no number in protobuf, which knows 'stop', 'length'"
    with pytest.raises(ValueError, match=words):
        proto.encode_sample(response)


def test_numbers_below_zero(messages: dict[str, Any]) -> None:
    """A negative number is ten bytes long, as protobuf writes it."""
    body = messages["SampleResponse"](prompt_cache_hit_tokens=-1).SerializeToString()
    assert (len(body), proto.decode_sample(body).prompt_cache_hit_tokens) == (11, -1)
    assert proto.encode_sample(proto.decode_sample(body)) == body


def test_empty_arrays_and_tables(messages: dict[str, Any]) -> None:
    """An empty array was not asked for; a table without alternatives is one of empty rows."""
    sent = SampleResponse.model_validate({"sequences": [], "topk_prompt_logprobs": [None, None]})
    assert proto.decode_sample(proto.encode_sample(sent)).topk_prompt_logprobs == [None, None]
    body = messages["SampleResponse"](prompt_logprobs=b"").SerializeToString()
    assert len(body) == 2
    assert proto.decode_sample(body).prompt_logprobs is None
