"""`tinker.proto`: the names that servers import, on recorded bodies of the official client."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from support.recordings import protobuf_bodies

from tinker._wire import proto
from tinker.proto import request_conv, response_conv
from tinker.proto import tinker_public_pb2 as pb
from tinker.types import (
    Datum,
    ForwardBackwardInput,
    ForwardBackwardOutput,
    ForwardBackwardRequest,
    ImageAssetPointerChunk,
    ModelInput,
    SampleResponse,
)


def bodies(message: str) -> list[Any]:
    """Return every recorded body of a message."""
    found = [pytest.param(body, id=place) for place, body in protobuf_bodies(message).items()]
    assert found
    return found


@pytest.mark.parametrize("body", bodies("ForwardBackwardRequest"))
def test_recorded_requests_are_made(body: bytes) -> None:
    """The message of a request equals that of the official client for the same datums."""
    message = pb.ForwardBackwardRequest.FromString(body)
    call = proto.decode_forward_backward(body)
    work = ForwardBackwardInput(
        data=call.data, loss_fn=call.loss_fn, loss_fn_config=call.loss_fn_config or None
    )  # type: ignore[arg-type]
    made = request_conv.forward_backward_request_to_proto(
        ForwardBackwardRequest(
            forward_backward_input=work, model_id=call.model_id, seq_id=call.seq_id
        )
    )
    made.forward_only = message.forward_only  # the official function leaves it to its caller too
    assert made == message
    assert len(made.data) > 0


@pytest.mark.parametrize("body", bodies("ForwardBackwardOutput"))
def test_recorded_outputs_are_read(body: bytes) -> None:
    """A result has the values that Google's runtime reads from the message."""
    message = pb.ForwardBackwardOutput.FromString(body)
    read = response_conv.deserialize_forward_backward_output(body)
    assert read.metrics == dict(message.metrics)
    datums = iter(read.loss_fn_outputs)
    for record in message.loss_fn_outputs:
        for index in range(record.num_datums):
            fields = next(datums)
            assert fields.keys() == record.fields.keys()
            for name, batched in record.fields.items():
                start, end = np.frombuffer(batched.offsets, np.int64)[index : index + 2]
                assert fields[name].to_numpy().tobytes() == batched.data[start:end]
    assert next(datums, None) is None


@pytest.mark.parametrize("body", bodies("SampleResponse"))
def test_recorded_samples_are_read(body: bytes) -> None:
    """A result has the tokens, log-probabilities and reasons that Google's runtime reads."""
    message = pb.SampleResponse.FromString(body)
    read = response_conv.deserialize_sample_response(body)
    assert len(read.sequences) == len(message.sequences)
    for sequence, sent in zip(read.sequences, message.sequences, strict=True):
        assert sequence.tokens == np.frombuffer(sent.tokens, np.int32).tolist()
        reason = pb.StopReason.Name(sent.stop_reason)
        assert f"STOP_REASON_{sequence.stop_reason.upper()}" == reason
        expected = np.frombuffer(sent.logprobs, np.float32).tolist() or None
        assert sequence.logprobs == expected
    prompt = np.frombuffer(message.prompt_logprobs, np.float32).tolist()
    assert (read.prompt_logprobs or []) == [None if math.isnan(one) else one for one in prompt]


def test_results_are_read_by_their_type() -> None:
    """The general function reads the two types that are sent as protobuf, and refuses others."""
    assert {SampleResponse, ForwardBackwardOutput} == response_conv.PROTO_SUPPORTED_TYPES
    for kind in response_conv.PROTO_SUPPORTED_TYPES:
        assert isinstance(response_conv.deserialize_proto_response(b"", kind), kind)
    with pytest.raises(ValueError, match="int"):
        response_conv.deserialize_proto_response(b"", int)


@pytest.mark.parametrize(
    "read",
    [response_conv.deserialize_sample_response, response_conv.deserialize_forward_backward_output],
)
def test_bytes_that_are_no_message_raise_googles_error(read: Any) -> None:
    """Invalid bytes raise the exception of Google's runtime, which existing code catches."""
    with pytest.raises(DecodeError):
        read(b"\xff\xff")


def test_a_message_whose_arrays_do_not_fit_is_a_value_error() -> None:
    """A message whose arrays do not fit is a ValueError that names the fault."""
    body = pb.SampleResponse(sequences=[pb.SampledSequence(tokens=b"\1\0\0")]).SerializeToString()
    with pytest.raises(ValueError, match="3 bytes"):
        response_conv.deserialize_sample_response(body)


def make_message(data: list[Datum]) -> pb.ForwardBackwardRequest:
    work = ForwardBackwardInput(data=data, loss_fn="ppo")  # type: ignore[arg-type]
    request = ForwardBackwardRequest(forward_backward_input=work, model_id="m")
    return request_conv.forward_backward_request_to_proto(request)


def test_requests_that_cannot_be_sent_are_refused() -> None:
    """A chunk without a protobuf form is refused, naming the datum; no number is 0."""
    pointer = ImageAssetPointerChunk(format="png", location="x", expected_tokens=1)
    with pytest.raises(ValueError, match=r"data\[1\]: an ImageAssetPointerChunk"):
        make_message([Datum(ModelInput.empty()), Datum(ModelInput(chunks=[pointer]))])
    made = make_message([])
    assert (made.seq_id, made.loss_fn) == (0, "ppo")


def test_requests_read_from_json_are_made_too() -> None:
    """A request read from JSON, which has lists instead of arrays, gives the same message."""
    datum = Datum(ModelInput.from_ints([1, 2]), {"weights": [1.0, 0.5]})  # type: ignore[dict-item]
    sent = ForwardBackwardRequest(
        forward_backward_input=ForwardBackwardInput(data=[datum], loss_fn="ppo"),  # type: ignore[list-item]
        model_id="m",
        seq_id=2,
    )
    received = ForwardBackwardRequest.model_validate(sent.model_dump(mode="json"))
    assert request_conv.forward_backward_request_to_proto(
        received
    ) == request_conv.forward_backward_request_to_proto(sent)


def test_servers_for_version_0_25_find_their_names() -> None:
    """The message of top tokens has its names of 0.25, too; the bytes are the same."""
    made = pb.TopkPromptLogprobs(k=2, prompt_length=3)
    assert made == pb.TopkLogprobs(k=2, length=3)
    assert made.prompt_length == 3
    response = pb.SampleResponse()
    response.topk_prompt_logprobs.prompt_length = 4
    assert response.topk_prompt_logprobs.length == 4
    response.topk_prompt_logprobs.CopyFrom(made)
    again = pb.SampleResponse.FromString(response.SerializeToString())
    assert again.topk_prompt_logprobs.prompt_length == 3
    with pytest.raises(AttributeError):
        made.no_such_field = 1


def run_python(program: str, *, pure: bool = False) -> subprocess.CompletedProcess[str]:
    """Return the output of a fresh interpreter."""
    choice = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"} if pure else {}
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **choice},
    )


def test_the_pure_python_runtime() -> None:
    """If the runtime is pure Python, messages and the older names work as well."""
    program = (
        "from google.protobuf.internal import api_implementation as i; assert i.Type() == 'python';"
        "from tinker.proto import tinker_public_pb2 as pb;"
        "print(pb.SampleResponse(topk_prompt_logprobs=pb.TopkPromptLogprobs(k=1, "
        "prompt_length=5)).SerializeToString().hex())"
    )
    done = run_python(program, pure=True)
    assert (done.stdout.strip(), done.returncode) == ("1a0418012005", 0), done.stderr


#: What `docs/contract/codec.md` tells servers to install, and the packages of this one.
PACKAGES = {
    "attr",
    "attrs",
    "google",
    "msgspec",
    "numpy",
    "tinker",
    "tinker_records",
    "tinker_wire",
    "zstandard",
}
CODEC = """
import sys
from tinker import types, wire
from tinker.proto import request_conv, response_conv, tinker_public_pb2
work = types.ForwardBackwardInput(data=[types.Datum(types.ModelInput.from_ints([1]), {"weights": [1.0]})], loss_fn="ppo")
request = types.ForwardBackwardRequest(forward_backward_input=work, model_id="m", seq_id=1)
call = wire.decode_forward_backward(request_conv.forward_backward_request_to_proto(request).SerializeToString())
wire.decode_forward_backward(b'{"model_id": "m", "forward_input": {"data": [], "loss_fn": "ppo"}}', wire.JSON, forward_only=True)
result = types.ForwardBackwardOutput("ArrayRecord", [dict(call.data[0].loss_fn_inputs)], {})
wire.encode_result(result, wire.JSON)
response_conv.deserialize_forward_backward_output(wire.encode_result(result)).loss_fn_outputs[0]["weights"].to_numpy()
wire.encode_result(types.SampleResponse([types.SampledSequence("stop", tokens=[1])]))
import zstandard
wire.unpack_body(zstandard.compress(b"x"), "zstd")
import importlib.metadata
names = importlib.metadata.packages_distributions()
print(*sorted({name.partition(".")[0] for name in sys.modules} & names.keys()))
"""


def test_the_codec_needs_none_of_the_clients_packages() -> None:
    """A server that uses the codec loads only the packages that the page lists."""
    done = run_python(CODEC)
    assert done.returncode == 0, done.stderr
    # of msgspec, where it is; of the environment
    loaded = set(done.stdout.split()) - {"typing_extensions", "_distutils_hack"}
    assert loaded <= PACKAGES
    assert {"msgspec", "google", "numpy"} <= loaded


def test_without_the_runtime_the_extra_is_named() -> None:
    """The import error says what to install; the rest of the package works without the runtime."""
    program = (
        "import sys; sys.modules['google.protobuf'] = None; import tinker.wire; import tinker.proto"
    )
    done = run_python(program)
    assert "ImportError: tinker.proto needs Google's protobuf runtime: pip install" in done.stderr
    assert "protobuf>=4.21" in done.stderr
