"""What servers use the package for: messages of requests, results from messages, and the names of
both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from showing import show

from tinker import types
from tinker.proto import request_conv, response_conv
from tinker.proto import tinker_public_pb2 as pb


def show_bytes(name: str, make: Callable[[], Any]) -> None:
    """The bytes of a message in the order of its fields, or the kind of error."""
    try:
        show(name, make().SerializeToString(deterministic=True).hex())
    except Exception as error:  # noqa: BLE001 - any error is shown
        show(name, isinstance(error, ValueError))


def show_result(name: str, read: Callable[[bytes], Any], body: bytes) -> None:
    """The value that bytes are read as, or the kind of error."""
    try:
        show(name, describe(read(body)))
    except Exception as error:  # noqa: BLE001
        show(
            name,
            [
                kind.__name__
                for kind in type(error).__mro__
                if kind.__name__ in ("DecodeError", "ValueError")
            ],
        )


def describe(result: Any) -> Any:
    """Return a result by the names that scripts use."""
    if isinstance(result, types.SampleResponse):
        sequences = [[s.stop_reason, s.tokens, s.logprobs] for s in result.sequences]
        return [
            sequences,
            result.prompt_logprobs,
            result.topk_prompt_logprobs,
            result.prompt_cache_hit_tokens,
        ]
    outputs = [
        {name: [t.dtype, t.shape, t.to_numpy().tolist()] for name, t in fields.items()}
        for fields in result.loss_fn_outputs
    ]
    return [result.loss_fn_output_type, outputs, dict(result.metrics)]


def request(
    chunks: list[Any] | None = None, number: int | None = 3, config: dict[str, Any] | None = None
) -> Any:
    """Return a training request with one datum."""
    inputs = {
        "weights": types.TensorData(data=[1.0, 0.5], dtype="float32", shape=[2]),
        "target_tokens": types.TensorData(
            data=[7],
            dtype="int64",
            shape=[1, 3],
            sparse_crow_indices=[0, 1],
            sparse_col_indices=[2],
        ),
    }
    prompt = (
        types.ModelInput.from_ints([1, 2]) if chunks is None else types.ModelInput(chunks=chunks)
    )
    work = types.ForwardBackwardInput(
        data=[types.Datum(model_input=prompt, loss_fn_inputs=inputs)],
        loss_fn="ppo",
        loss_fn_config=config,
    )
    return types.ForwardBackwardRequest(
        forward_backward_input=work, model_id="model-1", seq_id=number
    )


def show_names() -> None:
    """Every message, its fields with their numbers, and the values of enumerations."""
    for name, message in sorted(pb.DESCRIPTOR.message_types_by_name.items()):
        show(name, sorted((field.name, field.number, field.type) for field in message.fields))
        show(f"class {name}", hasattr(pb, name))
    for name, enum in sorted(pb.DESCRIPTOR.enum_types_by_name.items()):
        show(name, {value.name: getattr(pb, value.name) for value in enum.values})
    show("types of results", sorted(kind.__name__ for kind in response_conv.PROTO_SUPPORTED_TYPES))


def show_requests() -> None:
    """Requests of every kind."""
    convert = request_conv.forward_backward_request_to_proto
    image = types.ImageChunk(data=b"abc", format="png", expected_tokens=3)
    pointer = types.ImageAssetPointerChunk(format="png", location="x", expected_tokens=1)
    show_bytes("text", lambda: convert(request()))
    show_bytes("no number", lambda: convert(request(number=None)))
    show_bytes("numbers", lambda: convert(request(config={"clip": 0.2, "a": 1.0})))
    show_bytes("words", lambda: convert(request(config={"loss_id": "x", "a": 1.0})))
    show_bytes("image", lambda: convert(request([image, types.EncodedTextChunk(tokens=[5])])))
    show_bytes("pointer", lambda: convert(request([pointer])))


def show_outputs() -> None:
    """Results of losses, of every type of values."""
    output = pb.ForwardBackwardOutput(loss_fn_output_type="a.b:C", metrics={"loss:sum": 1.5})
    record = output.loss_fn_outputs.add(num_datums=2)
    field = record.fields["logprobs"]
    values = {
        1: np.arange(3, dtype=np.float32),
        2: np.arange(3),
        3: np.arange(3, dtype=np.int32),
        4: np.arange(3, dtype=np.uint16),
    }
    for kind, array in values.items():
        field.dtype, field.data = kind, array.tobytes()
        field.offsets = np.asarray([0, array.itemsize, 3 * array.itemsize], np.int64).tobytes()
        show_result(
            f"values {kind}",
            response_conv.deserialize_forward_backward_output,
            output.SerializeToString(),
        )
    field.dtype = 0
    show_result(
        "no type", response_conv.deserialize_forward_backward_output, output.SerializeToString()
    )
    show_result("no message", response_conv.deserialize_forward_backward_output, b"\xff\xff")
    show_result("nothing", response_conv.deserialize_forward_backward_output, b"")


def show_samples() -> None:
    """Results of samples."""
    sequence = pb.SampledSequence(
        stop_reason=pb.STOP_REASON_LENGTH,
        tokens=np.asarray([1, 2], np.int32).tobytes(),
        logprobs=np.asarray([-0.5, -1], np.float32).tobytes(),
    )
    table = pb.TopkLogprobs(
        k=2,
        length=2,
        token_ids=np.asarray([4, 5, 6, 0], np.int32).tobytes(),
        logprobs=np.asarray([-1, -2, -3, -99999], np.float32).tobytes(),
    )
    response = pb.SampleResponse(
        sequences=[sequence, pb.SampledSequence()],
        prompt_logprobs=np.asarray([np.nan, -2], np.float32).tobytes(),
        topk_prompt_logprobs=table,
        prompt_cache_hit_tokens=3,
    )
    show_result("sample", response_conv.deserialize_sample_response, response.SerializeToString())
    show_result("empty", response_conv.deserialize_sample_response, b"")
    show_result("cut", response_conv.deserialize_sample_response, response.SerializeToString()[:-1])
    show_result(
        "by type",
        lambda body: response_conv.deserialize_proto_response(body, types.SampleResponse),
        response.SerializeToString(),
    )
    show_result("other type", lambda body: response_conv.deserialize_proto_response(body, int), b"")


if __name__ == "__main__":
    show_names()
    show_requests()
    show_outputs()
    show_samples()
