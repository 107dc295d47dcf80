"""Messages of requests. What is written here is what the client sends."""

from __future__ import annotations

from tinker_wire import models

from tinker._wire import json, proto
from tinker.proto import tinker_public_pb2
from tinker.types import ForwardBackwardRequest

__all__ = ["forward_backward_request_to_proto"]


def forward_backward_request_to_proto(
    request: ForwardBackwardRequest,
) -> tinker_public_pb2.ForwardBackwardRequest:
    """Return a training request as the message that a client sends.

    Args:
        request: The request. Without a number (``seq_id``) the message has 0.

    Returns:
        The message; ``SerializeToString()`` makes the body of the request.

    Raises:
        ValueError: A datum cannot be sent as protobuf, as with a chunk that only names the place of
            an image.

    >>> from tinker.types import ForwardBackwardInput
    >>> work = ForwardBackwardInput(data=[], loss_fn="cross_entropy")
    >>> request = ForwardBackwardRequest(forward_backward_input=work, model_id="model-1", seq_id=3)
    >>> forward_backward_request_to_proto(request)
    model_id: "model-1"
    seq_id: 3
    loss_fn: "cross_entropy"
    <BLANKLINE>
    """
    work = request.forward_backward_input
    # A request read from JSON has the records of the wire, with lists.
    data = [
        json.public_datum(datum) if isinstance(datum, models.Datum) else datum
        for datum in work.data
    ]
    parts = proto.encode_forward_backward(
        request.model_id, request.seq_id or 0, data, work.loss_fn, work.loss_fn_config
    )
    return tinker_public_pb2.ForwardBackwardRequest.FromString(b"".join(parts))
