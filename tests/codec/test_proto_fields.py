"""Every field of tinker_public.proto is read and written by the codec, or listed with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tinker._wire import proto
from tinker.proto import tinker_public_pb2 as pb

#: Fields that the codec ignores.
PASSED_OVER = {
    "ImageChunk.override_dimensions": "images are sent with the size that they have",
    "ImageDimensions": "only part of ImageChunk.override_dimensions",
    "SamplingParams": "no operation carries it",
    "StopStrings": "only part of SamplingParams",
    "StopTokens": "only part of SamplingParams",
    "DType.DTYPE_UNSPECIFIED": "a tensor has a type",
    "DType.DTYPE_INT32": "read as int64, which is written again",
    "DType.DTYPE_BFLOAT16": "read as float32, which is written again",
}
F4, I4, I8 = (
    lambda *values, kind=kind: np.array(values, kind).tobytes() for kind in ("<f4", "<i4", "<i8")
)


def tensor(dtype: int = pb.DTYPE_INT64, **fields: Any) -> pb.Tensor:
    return pb.Tensor(**{"dense": I8(3, 4), "shape": [1, 2], "dtype": dtype} | fields)


def request() -> pb.ForwardBackwardRequest:
    """Return a request in which every field has a value other than its default."""
    sparse = pb.SparseCsr(values=F4(1.5, 2.5), crow_indices=I8(0, 1, 2), col_indices=I8(3, 1))
    place = {"sequence_id": "s", "offset": 1, "length": 2}
    spans = [
        pb.ProvenanceSpan(prompt_tokens=pb.PromptProvenanceSpan(**place)),
        pb.ProvenanceSpan(sampled_tokens=pb.SampledProvenanceSpan(**place)),
    ]
    datum = pb.Datum(
        model_input=[
            pb.Chunk(encoded_text=pb.EncodedTextChunk(tokens=I4(1, 2))),
            pb.Chunk(image=pb.ImageChunk(data=b"png", format="png", expected_tokens=3)),
            pb.Chunk(dmel=pb.DmelChunk(dmel=b"\1\2")),
        ],
        loss_fn_inputs={
            "dense": tensor(),
            "sparse": pb.Tensor(sparse_csr=sparse, dtype=pb.DTYPE_FLOAT32, shape=[2, 4]),
        },
        model_input_spans=spans,
        loss_fn_input_spans=spans,
    )
    values = {"number": pb.LossConfigValue(number=0.5), "text": pb.LossConfigValue(text="x")}
    return pb.ForwardBackwardRequest(
        model_id="m",
        seq_id=2,
        data=[datum],
        loss_fn="ppo",
        loss_fn_config={"number": 0.5},
        forward_only=True,
        loss_fn_config_v2=values,
    )


def output() -> pb.ForwardBackwardOutput:
    column = pb.BatchedTensor(
        data=F4(1, 2), offsets=I8(0, 8), dtype=pb.DTYPE_FLOAT32, trailing_shape=[2]
    )
    record = pb.ArrayRecord(type_tag="ArrayRecord", fields={"logprobs": column}, num_datums=1)
    return pb.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record], metrics={"loss:sum": 1.5}
    )


def sample() -> pb.SampleResponse:
    top = pb.TopkLogprobs(token_ids=I4(5, 6), logprobs=F4(-1, -2), k=2, length=1)
    sequences = [
        pb.SampledSequence(
            stop_reason=reason, tokens=I4(7), logprobs=F4(-0.5), topk_sampled_logprobs=top
        )
        for reason in pb.StopReason.values()
    ]
    return pb.SampleResponse(
        sequences=sequences,
        prompt_logprobs=F4(-0.5, -1.5),
        topk_prompt_logprobs=top,
        prompt_cache_hit_tokens=4,
        target_prompt_logprobs=pb.Tensor(dense=F4(1, 2), dtype=pb.DTYPE_FLOAT32, shape=[2]),
        prompt_alt_tokens=pb.PromptAltTokens(tokens=tensor(), logprobs=tensor()),
    )


def rewrite_request(body: bytes) -> bytes:
    call = proto.decode_forward_backward(body)
    return b"".join(
        proto.encode_forward_backward(
            call.model_id,
            call.seq_id,
            call.data,
            call.loss_fn,
            call.loss_fn_config,
            forward_only=call.forward_only,
        )
    )


CASES: list[tuple[Any, Callable[[bytes], bytes]]] = [
    (request(), rewrite_request),
    (output(), lambda body: proto.encode_loss_output(proto.decode_loss_output(body))),
    (sample(), lambda body: proto.encode_sample(proto.decode_sample(body))),
]


def names_in(message: Any) -> Iterator[str]:
    """Yield `Message.field` for every field with a value, and `Enum.VALUE` for every such value."""
    for field, value in message.ListFields():
        yield f"{message.DESCRIPTOR.name}.{field.name}"
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        values = value.values() if is_map else value if field.is_repeated else [value]
        for one in values:
            if field.enum_type is not None:
                yield f"{field.enum_type.name}.{field.enum_type.values_by_number[one].name}"
            elif hasattr(one, "ListFields"):
                yield from names_in(one)
    if message.DESCRIPTOR.name == "SampledSequence":  # an enum's zero is not listed
        yield f"StopReason.{pb.StopReason.Name(message.stop_reason)}"


def declared(file: Any) -> Iterator[str]:
    """Yield the same for every declaration of a file."""
    for message in file.message_types_by_name.values():
        yield from (f"{message.name}.{field.name}" for field in message.fields)
    for enum in file.enum_types_by_name.values():
        yield from (f"{enum.name}.{value.name}" for value in enum.values)


def find_lost(file: Any) -> set[str]:
    """Return what is declared in a file, and in no re-written message, without a reason."""
    kept = {
        name
        for message, rewrite in CASES
        for name in names_in(type(message).FromString(rewrite(message.SerializeToString())))
    }
    return {
        name
        for name in declared(file)
        if name not in kept and not {name, name.partition(".")[0]} & PASSED_OVER.keys()
    }


@pytest.mark.parametrize(("message", "rewrite"), CASES, ids=["request", "output", "sample"])
def test_values_that_were_read_are_written_again(message: Any, rewrite: Any) -> None:
    """Every value of a message survives our codec, as read by Google's runtime."""
    assert type(message).FromString(rewrite(message.SerializeToString())) == message


def test_no_field_is_lost() -> None:
    """Each field and value of the .proto is in a message read and written, or has a reason."""
    assert find_lost(pb.DESCRIPTOR) == set(), (
        "run `python -m codegen generate protobuf` and give it a value in request(), output() or sample() of this file, "
        "or write `// unused` behind it in tinker_public.proto and list it in PASSED_OVER with the reason"
    )


def test_every_reason_is_needed() -> None:
    """Every ignored field is declared, and is not written."""
    names = set(declared(pb.DESCRIPTOR))
    kept = {name for message, _ in CASES for name in names_in(message)}
    assert {
        name
        for name in PASSED_OVER
        if name in kept or not any(one in (name,) or one.startswith(f"{name}.") for one in names)
    } == set()


def test_a_new_field_is_noticed() -> None:
    """A field added to any message, or a value to any enum, is reported until it is read."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        message.field.add(
            name="new", number=99, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT32, label=1
        )
    for enum in file.enum_type:
        enum.value.add(name=f"{enum.name}_NEW", number=99)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    grown = pool.FindFileByName(file.name)
    assert message_factory.GetMessageClass(grown.message_types_by_name["Tensor"])
    messages = {
        f"{message.name}.new" for message in file.message_type if message.name not in PASSED_OVER
    }
    assert find_lost(grown) == messages | {
        f"{enum.name}.{enum.name}_NEW" for enum in file.enum_type
    }
