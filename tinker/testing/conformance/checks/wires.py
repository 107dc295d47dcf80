"""The two forms of bulk data, JSON and protobuf, in both directions, and what has several ways of
being written.
"""

from __future__ import annotations

import numpy as np

from tinker._installation import install_command
from tinker._wire import compression, json, proto
from tinker.testing.conformance.context import CheckContext, TrainingFixture
from tinker.testing.conformance.outcome import Absent, CheckEnd, Refused, optional
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.run_state import BodyFormat
from tinker.testing.conformance.session import PendingResult, encode_body
from tinker.testing.conformance.values import DATA, Floats, are_close, datum, distance, logprobs_of
from tinker.types.datum import Datum
from tinker.types.model_input import EncodedTextChunk, ModelInput
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData


@check("forward_backward", "retrieve_future")
def protobuf(context: CheckContext) -> None:
    """A loss can be requested and returned as protobuf."""
    promise = _submit(context.borrow(), "proto")
    answer = context.wait_for_response(promise, protobuf=True)
    context.expect(
        answer.media_type == proto.MEDIA_TYPE,
        f"where protobuf is accepted the result is {answer.media_type}",
    )


@check("forward_backward", "retrieve_future")
def json_body(context: CheckContext) -> None:
    """A loss can be requested and returned as JSON, as 2025 clients do."""
    promise = _submit(context.borrow(), "json")
    answer = context.wait_for_response(promise, protobuf=False)
    context.require(
        answer.media_type == json.MEDIA_TYPE,
        f"where JSON is accepted the result is {answer.media_type}",
    )
    logprobs_of(context.result(promise, protobuf=False))


@check("forward")
def forward_json(context: CheckContext) -> None:
    """The older operation for a forward pass returns the same logprobs and loss as
    the newer one.
    """
    fixture = context.borrow()
    older, newer = context.result(_submit(fixture, "json", backward=False)), fixture.output()
    _same(
        context,
        logprobs_of(newer),
        logprobs_of(older, DATA, "forward"),
        "forward_backward",
        "forward",
    )
    one, other = context.loss_of(newer), context.loss_of(older)
    told = f"the loss by forward_backward is {one:g}, by forward {other:g}"
    context.require(
        are_close(one, other), told, operation="forward", schema="ForwardBackwardOutput"
    )


@check("forward_backward")
def equal_forms(context: CheckContext) -> None:
    """Both forms of a request give the same result, and both forms of a result have the same
    content.
    """
    fixture = context.create()
    one, other = _submit(fixture, "proto", backward=True), _submit(fixture, "json", backward=True)
    results = [
        context.result(promise, protobuf=form) for promise in (one, other) for form in (True, False)
    ]
    values = [logprobs_of(result) for result in results]
    for what, value in zip(
        ("a protobuf request as JSON", "a JSON request", "a JSON request as JSON"), values[1:]
    ):
        _same(context, values[0], value, "a protobuf request", what)
    losses = [context.loss_of(result) for result in results]
    context.require(
        max(losses) - min(losses) <= 1e-3 * (1 + abs(losses[0])),
        f"loss:sum is {losses} in the four forms",
    )


@check("forward_backward")
def zstd(context: CheckContext) -> None:
    """A protobuf body may be compressed with zstd."""
    if not compression.available():
        raise Absent(f"not tried: this installation has no zstd ({install_command('zstd')})")
    fixture = context.create()
    request = fixture.request("proto", number=1, backward=False)
    body = b"".join(compression.compress([encode_body(request)]))
    with optional(Refused):
        promise = context.submit(
            request, ForwardBackwardOutput, content=body, headers={"Content-Encoding": "zstd"}
        )
    fixture.number = 2
    _same(
        context,
        fixture.logprobs(),
        logprobs_of(context.result(promise)),
        "the plain body",
        "the compressed one",
    )


@check("forward_backward")
def sparse(context: CheckContext) -> None:
    """A sparse tensor equals the dense tensor with its zeros."""
    rows, columns = [0, 1, 3, 4], [0, 0, 1, 1]
    dense = _datum(
        TensorData.from_numpy(np.array([[6, 0], [7, 8], [0, 9]])),
        TensorData.from_numpy(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 2.0]], np.float32)),
    )
    thin = _datum(
        TensorData([6, 7, 8, 9], "int64", [3, 2], rows, columns),
        TensorData([1.0, 0.5, 0.5, 2.0], "float32", [3, 2], rows, columns),
    )
    fixture = context.borrow()
    with optional(
        CheckEnd, about="several targets at each place are not taken as dense tensors either"
    ):
        one = context.loss_of(fixture.output([dense]))
    with optional():
        other = context.loss_of(fixture.output([thin]))
    context.require(
        are_close(one, other), f"the loss of the dense tensors is {one:g}, of the sparse {other:g}"
    )


@check("forward_backward")
def chunks(context: CheckContext) -> None:
    """Text in several chunks equals the same text in one chunk."""
    whole = datum((5, 6, 7, 8))
    parts = ModelInput(
        chunks=[
            EncodedTextChunk(tokens=[5]),
            EncodedTextChunk(tokens=[6, 7]),
            EncodedTextChunk(tokens=[8]),
        ]
    )
    fixture = context.borrow()
    one, other = (fixture.logprobs([each]) for each in (whole, Datum(parts, whole.loss_fn_inputs)))
    _same(context, one, other, "one chunk", "three chunks")


@check("forward_backward")
def order_of_outputs(context: CheckContext) -> None:
    """Outputs are in the order of the data, whatever their lengths."""
    fixture = context.borrow()
    data = [datum(range(5, 5 + length)) for length in (4, 1, 7, 2)]
    alone = np.concatenate([fixture.logprobs([each]) for each in data])
    _same(context, alone, fixture.logprobs(data), "the datums one by one", "the datums together")


def _datum(targets: TensorData, weights: TensorData) -> Datum:
    return Datum(ModelInput.from_ints([5, 6, 7]), {"target_tokens": targets, "weights": weights})


def _submit(
    fixture: TrainingFixture, form: BodyFormat, *, backward: bool = True
) -> PendingResult[ForwardBackwardOutput]:
    """Submit a loss in this format. Absent if the server does not accept it."""
    with optional(Refused):
        return fixture.loss(DATA, form=form, backward=backward)


def _same(context: CheckContext, one: Floats, other: Floats, what: str, against: str) -> None:
    apart = distance(one, other)
    context.require(
        apart <= 1e-2, f"the logprobs of {against} are up to {apart:g} away from those of {what}"
    )
