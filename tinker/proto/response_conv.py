"""Results from the bytes of protobuf messages, as the client reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tinker._wire import proto
from tinker.proto import tinker_public_pb2
from tinker.types import ForwardBackwardOutput, SampleResponse

__all__ = [
    "PROTO_SUPPORTED_TYPES",
    "deserialize_forward_backward_output",
    "deserialize_proto_response",
    "deserialize_sample_response",
]

Result = TypeVar("Result")


def deserialize_sample_response(proto_bytes: bytes) -> SampleResponse:
    """Return the result of a sample.

    Args:
        proto_bytes: A ``SampleResponse`` message.

    Returns:
        The result; its arrays are views of one copy of the bytes.

    Raises:
        google.protobuf.message.DecodeError: The bytes are not a protobuf message.
        ValueError: They are one, but its arrays do not fit together.

    >>> deserialize_sample_response(b"").sequences
    []
    """
    return _decode(proto.decode_sample, proto_bytes, tinker_public_pb2.SampleResponse.FromString)


def deserialize_forward_backward_output(proto_bytes: bytes) -> ForwardBackwardOutput:
    """Return the result of a loss: one record for each datum, and the metrics.

    Args:
        proto_bytes: A ``ForwardBackwardOutput`` message.

    Returns:
        The result; its arrays are views of one copy of the bytes.

    Raises:
        google.protobuf.message.DecodeError: The bytes are not a protobuf message.
        ValueError: They are one, but its arrays do not fit together.

    >>> deserialize_forward_backward_output(b"").loss_fn_outputs
    []
    """
    return _decode(
        proto.decode_loss_output, proto_bytes, tinker_public_pb2.ForwardBackwardOutput.FromString
    )


_READERS: dict[type, Callable[[bytes], object]] = {
    SampleResponse: deserialize_sample_response,
    ForwardBackwardOutput: deserialize_forward_backward_output,
}
#: Types of results that servers may send as protobuf.
PROTO_SUPPORTED_TYPES: set[type] = set(_READERS)


def deserialize_proto_response(proto_bytes: bytes, model_cls: type) -> object:
    """Return a result of one of the ``PROTO_SUPPORTED_TYPES``.

    Args:
        proto_bytes: The message.
        model_cls: ``SampleResponse`` or ``ForwardBackwardOutput``.

    Returns:
        The result, of that type.

    Raises:
        ValueError: Results of that type are not sent as protobuf, or the arrays do not fit
            together.
        google.protobuf.message.DecodeError: The bytes are not a protobuf message.

    >>> deserialize_proto_response(b"", SampleResponse).sequences
    []
    """
    if model_cls not in _READERS:
        raise ValueError(f"results of type {model_cls!r} are not sent as protobuf")
    return _READERS[model_cls](proto_bytes)


def _decode(
    read: Callable[[bytes], Result], body: bytes, parse: Callable[[bytes], object]
) -> Result:
    """Read a message; bytes that Google's runtime refuses as well get its error, which code for it
    catches.
    """
    try:
        return read(body)
    except proto.ProtoError:
        parse(body)
        raise
