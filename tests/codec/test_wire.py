"""`tinker.wire`: the functions with which server authors read requests and write results."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tinker.wire
from tinker.proto.response_conv import deserialize_forward_backward_output
from tinker.types import (
    ForwardBackwardOutput,
    PromptAltTokens,
    SampledSequence,
    SampleResponse,
    TensorData,
    UntypedAPIFuture,
)
from tinker.wire import BodyTooLargeError

DATUM = {
    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
    "loss_fn_inputs": {"weights": {"data": [1.0, 0.5], "dtype": "float32", "shape": [2]}},
}
WORK = {"data": [DATUM], "loss_fn": "ppo", "loss_fn_config": {"clip": 0.5}}


@pytest.mark.parametrize(
    ("field", "forward_only"), [("forward_backward_input", False), ("forward_input", True)]
)
def test_json_requests_are_read(field: str, forward_only: bool) -> None:
    """Both JSON operations give the same call, which has a flag for forward passes."""
    body = json.dumps({"model_id": "m", "seq_id": 4, field: WORK}).encode()
    call = tinker.wire.decode_forward_backward(
        body, "application/json; charset=utf-8", forward_only=forward_only
    )
    assert (call.model_id, call.seq_id, call.loss_fn) == ("m", 4, "ppo")
    assert call.forward_only == forward_only
    assert call.loss_fn_config == {"clip": 0.5}
    assert call.data[0].model_input.to_ints() == [1, 2]
    assert call.data[0].loss_fn_inputs["weights"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("content_type", [tinker.wire.JSON, tinker.wire.PROTOBUF])
@pytest.mark.parametrize("body", [b"\xff\xff", b'{"model_id": 1}'])
def test_other_bodies_are_value_errors(content_type: str, body: bytes) -> None:
    """Every invalid body raises a single kind of error for a server to handle."""
    with pytest.raises(ValueError):  # noqa: PT011 - the texts are those of two decoders
        tinker.wire.decode_forward_backward(body, content_type)


def test_results_are_written_in_the_form_that_is_accepted() -> None:
    """A result has the same contents in either form; records are JSON whatever is accepted."""
    fields = {"logprobs": TensorData([-0.5], "float32", [1])}
    output = ForwardBackwardOutput("ArrayRecord", [fields], {"loss:sum": 2.0})
    for accepted, chosen in (
        ("application/x-protobuf, application/json", tinker.wire.PROTOBUF),
        ("*/*", tinker.wire.JSON),
    ):
        assert tinker.wire.choose_media_type(accepted) == chosen
    read: Any = json.loads(tinker.wire.encode_result(output, tinker.wire.JSON))
    assert read["loss_fn_outputs"][0]["logprobs"]["data"] == [-0.5]
    again = deserialize_forward_backward_output(tinker.wire.encode_result(output))
    assert again.metrics == {"loss:sum": 2.0}
    promise = UntypedAPIFuture(request_id="r")
    assert json.loads(tinker.wire.encode_result(promise, tinker.wire.PROTOBUF))["request_id"] == "r"


def test_results_without_a_json_form_are_refused() -> None:
    """Alternative tokens have no JSON form, and are refused instead of being lost silently."""
    tokens, logprobs = TensorData([[5]], "int64", [1, 1]), TensorData([[-0.5]], "float32", [1, 1])
    drawn = PromptAltTokens(tokens=tokens, logprobs=logprobs)
    sample = SampleResponse([SampledSequence("stop", tokens=[1])], prompt_alt_tokens=drawn)
    assert tinker.wire.encode_result(sample)
    with pytest.raises(ValueError, match="protobuf only"):
        tinker.wire.encode_result(sample, tinker.wire.JSON)


def test_compressed_bodies_are_unpacked_within_a_limit() -> None:
    """zstd is decompressed up to the limit; other encodings and damaged bodies are refused."""
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor().compress(b"x" * 1000)
    assert tinker.wire.unpack_body(packed, "zstd", max_nbytes=1000) == b"x" * 1000
    assert tinker.wire.unpack_body(2 * packed, "zstd") == b"x" * 2000
    with pytest.raises(BodyTooLargeError, match="999 bytes"):
        tinker.wire.unpack_body(packed, "zstd", max_nbytes=999)
    with pytest.raises(BodyTooLargeError):
        tinker.wire.unpack_body(b"plain", max_nbytes=4)
    assert tinker.wire.unpack_body(b"plain") == b"plain"
    with pytest.raises(ValueError, match="not zstd"):
        tinker.wire.unpack_body(b"plain", "zstd")
    with pytest.raises(ValueError, match="'br'"):
        tinker.wire.unpack_body(b"plain", "br")
