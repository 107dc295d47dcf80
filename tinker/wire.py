"""The bodies of the API for those who write a server: requests of clients are read, results are
written, fast.

This is the codec of the client and of :mod:`tinker.local`, seen from the other side. It needs no
package of protobuf; arrays are views of the bytes received, and are written from their memory. JSON
bodies of other requests are records of :mod:`tinker.types`, each read by its
``model_validate_json``, which refuses fields that it does not know.

>>> import tinker.wire
>>> from tinker.types import SampledSequence, SampleResponse
>>> result = SampleResponse(
...     sequences=[SampledSequence(stop_reason="stop", tokens=[1, 2], logprobs=[-0.5, -0.25])]
... )
>>> media_type = tinker.wire.choose_media_type("application/x-protobuf, application/json")
>>> body = tinker.wire.encode_result(result, media_type)
>>> media_type, len(body)
('application/x-protobuf', 22)
"""

from __future__ import annotations

import msgspec
from tinker_wire import models

from tinker import _wire
from tinker._wire import json, proto
from tinker.types.results import ForwardBackwardOutput, SampleResponse

__all__ = [
    "JSON",
    "PROTOBUF",
    "BodyTooLargeError",
    "ForwardBackwardCall",
    "choose_media_type",
    "decode_forward_backward",
    "encode_result",
    "unpack_body",
]

#: The media types of bodies.
JSON, PROTOBUF = json.MEDIA_TYPE, proto.MEDIA_TYPE

ForwardBackwardCall = proto.ForwardBackwardCall
BodyTooLargeError = _wire.BodyTooLargeError


def unpack_body(body: bytes, content_encoding: str = "", *, max_nbytes: int = 64 << 20) -> bytes:
    """Return the plain bytes of a body, as the header ``Content-Encoding`` says.

    Args:
        body: The bytes received.
        content_encoding: The header; clients send ``zstd`` where the server's client settings ask
            for it.
        max_nbytes: The largest number of bytes to decompress. A small zstd body can expand to
            gigabytes.

    Returns:
        The body as it was before compression.

    Raises:
        BodyTooLargeError: More bytes would come out; the response for that is 413.
        ValueError: The encoding is another one, or the bytes are not zstd.
        ImportError: The package ``zstandard`` is missing, which the extra ``zstd`` adds.

    >>> unpack_body(b"{}")
    b'{}'
    """
    encoding = content_encoding.strip().lower()
    if encoding == _wire.CONTENT_ENCODING:
        return _wire.decompress(body, max_nbytes)
    if encoding not in ("", "identity"):
        raise ValueError(
            f"Content-Encoding {content_encoding!r} is not supported; send the body "
            "plain or as zstd"
        )
    if len(body) > max_nbytes:
        raise BodyTooLargeError(max_nbytes)
    return body


def decode_forward_backward(
    body: bytes, content_type: str = PROTOBUF, *, forward_only: bool = False
) -> ForwardBackwardCall:
    """Return the training request in a body, JSON or protobuf.

    Args:
        body: The plain bytes, as of :func:`unpack_body`.
        content_type: The header ``Content-Type``.
        forward_only: Whether a JSON body came as a forward pass, which has an operation of its own.
            Protobuf bodies say it.

    Returns:
        The request, with ``model_id``, ``seq_id`` (0 without a number), ``data``, ``loss_fn``,
        ``loss_fn_config`` and ``forward_only``. Tokens and tensors are arrays.

    Raises:
        ValueError: The body is not such a request; the text says where.

    >>> work = b'{"data": [], "loss_fn": "cross_entropy"}'
    >>> body = b'{"model_id": "m", "seq_id": 1, "forward_backward_input": %b}' % work
    >>> call = decode_forward_backward(body, "application/json")
    >>> call.model_id, call.seq_id, call.loss_fn, call.forward_only
    ('m', 1, 'cross_entropy', False)
    """
    if content_type.startswith(PROTOBUF):
        return proto.decode_forward_backward(body)
    if forward_only:
        forward = json.decode(body, models.ForwardRequest)
        return _call(forward, forward.forward_input, forward_only=True)
    request = json.decode(body, models.ForwardBackwardRequest)
    return _call(request, request.forward_backward_input, forward_only=False)


def _call(
    request: models.ForwardRequest | models.ForwardBackwardRequest,
    work: models.ForwardBackwardInput,
    *,
    forward_only: bool,
) -> ForwardBackwardCall:
    return ForwardBackwardCall(
        model_id=request.model_id,
        seq_id=request.seq_id or 0,
        data=[json.public_datum(datum) for datum in work.data],
        loss_fn=work.loss_fn,
        loss_fn_config=dict(work.loss_fn_config or {}),
        forward_only=forward_only,
    )


def choose_media_type(accept: str) -> str:
    """Return the media type for the result of a sample or a loss: protobuf where the client takes
    it.

    Args:
        accept: The header ``Accept`` of the request for the result.

    Returns:
        ``PROTOBUF`` or ``JSON``.

    >>> choose_media_type("application/json")
    'application/json'
    """
    return PROTOBUF if PROTOBUF in accept else JSON


def encode_result(
    result: ForwardBackwardOutput | SampleResponse | msgspec.Struct, media_type: str = PROTOBUF
) -> bytes:
    """Return the body of a result.

    Args:
        result: A result of a loss or a sample, or any record of :mod:`tinker.types`, which is JSON
            always.
        media_type: ``PROTOBUF`` or ``JSON``, as of :func:`choose_media_type`.

    Returns:
        The body.

    Raises:
        ValueError: JSON cannot carry the result: NaN, infinity, alternative tokens, or
            log-probabilities of target prompts.

    >>> encode_result(ForwardBackwardOutput("ArrayRecord", [], {"loss:sum": 2.0}), JSON)
    b'{"loss_fn_output_type":"ArrayRecord","loss_fn_outputs":[],"metrics":{"loss:sum":2.0}}'
    """
    if isinstance(result, ForwardBackwardOutput):
        return (
            proto.encode_loss_output(result)
            if media_type == PROTOBUF
            else json.encode(json.wire_loss_output(result))
        )
    if isinstance(result, SampleResponse):
        return (
            proto.encode_sample(result) if media_type == PROTOBUF else _encode_json_sample(result)
        )
    return json.encode(result)


def _encode_json_sample(result: SampleResponse) -> bytes:
    """Encode a sample as JSON. Raises ValueError for the two fields that JSON lacks, so that none
    is lost silently.
    """
    if result.target_prompt_logprobs is not None or result.prompt_alt_tokens is not None:
        raise ValueError(
            "target_prompt_logprobs and prompt_alt_tokens exist in protobuf only; accept that"
        )
    return json.encode(json.wire_sample(result))
