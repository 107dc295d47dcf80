"""The two forms of bulk data, JSON and protobuf, in both directions, and what has several ways of being written."""

from __future__ import annotations

import numpy as np

from tinker._installation import install_command
from tinker._wire import compression, json, proto
from tinker.testing.conformance.bench import Bench, Promise, plain_body
from tinker.testing.conformance.exchange import Form
from tinker.testing.conformance.outcome import Absent, Failed, Refused
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.trainee import DATA, Floats, Trainee, create, datum, distance, logprobs_of, loss_of
from tinker.types.datum import Datum
from tinker.types.model_input import EncodedTextChunk, ModelInput
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData


@check("forward_backward", "retrieve_future")
def protobuf(bench: Bench) -> None:
    """A loss travels as protobuf, there and back."""
    promise = _submitted(create(bench), "proto")
    answer = bench.outcome(promise, protobuf=True)
    bench.expect(answer.media_type == proto.MEDIA_TYPE, f"where protobuf is accepted the result is {answer.media_type}")


@check("forward_backward", "retrieve_future")
def json_body(bench: Bench) -> None:
    """A loss travels as JSON, there and back, as clients of 2025 send it."""
    promise = _submitted(create(bench), "json")
    answer = bench.outcome(promise, protobuf=False)
    bench.require(answer.media_type == json.MEDIA_TYPE, f"where JSON is accepted the result is {answer.media_type}")
    logprobs_of(bench.result(promise, protobuf=False))


@check("forward")
def forward_json(bench: Bench) -> None:
    """The older operation for a loss without a gradient answers the same as the newer one."""
    trainee = create(bench)
    older = logprobs_of(bench.result(_submitted(trainee, "json", backward=False)))
    _same(bench, trainee.logprobs(), older, "forward_backward", "forward")


@check("forward_backward")
def equal_forms(bench: Bench) -> None:
    """Both forms of a request mean the same, and both forms of a result hold the same."""
    trainee = create(bench)
    one, other = _submitted(trainee, "proto", backward=True), _submitted(trainee, "json", backward=True)
    results = [bench.result(promise, protobuf=form) for promise in (one, other) for form in (True, False)]
    values = [logprobs_of(result) for result in results]
    for what, value in zip(("a protobuf request as JSON", "a JSON request", "a JSON request as JSON"), values[1:]):
        _same(bench, values[0], value, "a protobuf request", what)
    losses = [loss_of(bench, result) for result in results]
    bench.expect(max(losses) - min(losses) <= 1e-3 * (1 + abs(losses[0])), f"loss:sum is {losses} in the four forms")


@check("forward_backward")
def compressed(bench: Bench) -> None:
    """A protobuf body may be compressed with zstd."""
    if not compression.available():
        raise Absent(f"not tried: this installation has no zstd ({install_command('zstd')})")
    trainee = create(bench)
    request = trainee.request("proto", number=1, backward=False)
    body = b"".join(compression.compressed([plain_body(request)]))
    try:
        promise = bench.submit(request, ForwardBackwardOutput, content=body, headers={"Content-Encoding": "zstd"})
    except Refused as error:
        raise Absent(str(error)) from error
    trainee.number = 2
    _same(bench, trainee.logprobs(), logprobs_of(bench.result(promise)), "the plain body", "the compressed one")


@check("forward_backward")
def sparse(bench: Bench) -> None:
    """A sparse tensor means the same as the dense one with its zeros."""
    rows, columns = [0, 1, 3, 4], [0, 0, 1, 1]
    dense = _datum(
        TensorData.from_numpy(np.array([[6, 0], [7, 8], [0, 9]])),
        TensorData.from_numpy(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 2.0]], np.float32)),
    )
    thin = _datum(
        TensorData([6, 7, 8, 9], "int64", [3, 2], rows, columns),
        TensorData([1.0, 0.5, 0.5, 2.0], "float32", [3, 2], rows, columns),
    )
    trainee = create(bench)
    try:
        one, other = (loss_of(bench, trainee.output([each], backward=False)) for each in (dense, thin))
    except (Refused, Failed) as error:
        raise Absent(str(error)) from error
    bench.expect(
        abs(one - other) <= 1e-3 * (1 + abs(one)), f"the loss of the dense tensors is {one:g}, of the sparse {other:g}"
    )


@check("forward_backward")
def chunks(bench: Bench) -> None:
    """Text in several chunks is the same text in one."""
    whole = datum((5, 6, 7, 8))
    parts = ModelInput(chunks=[EncodedTextChunk(tokens=[5]), EncodedTextChunk(tokens=[6, 7]), EncodedTextChunk(tokens=[8])])
    trainee = create(bench)
    one, other = (trainee.logprobs([each]) for each in (whole, Datum(parts, whole.loss_fn_inputs)))
    _same(bench, one, other, "one chunk", "three chunks")


@check("forward_backward")
def order_of_outputs(bench: Bench) -> None:
    """Outputs are in the order of the data, whatever their lengths."""
    trainee = create(bench)
    data = [datum(range(5, 5 + length)) for length in (4, 1, 7, 2)]
    alone = np.concatenate([trainee.logprobs([each]) for each in data])
    _same(bench, alone, trainee.logprobs(data), "the datums one by one", "the datums together")


def _datum(targets: TensorData, weights: TensorData) -> Datum:
    return Datum(ModelInput.from_ints([5, 6, 7]), {"target_tokens": targets, "weights": weights})


def _submitted(trainee: Trainee, form: Form, *, backward: bool = True) -> Promise[ForwardBackwardOutput]:
    """A loss in a form; Absent when the server does not take it."""
    try:
        return trainee.loss(DATA, form=form, backward=backward)
    except Refused as error:
        raise Absent(str(error)) from error


def _same(bench: Bench, one: Floats, other: Floats, what: str, against: str) -> None:
    apart = distance(one, other)
    bench.expect(apart <= 1e-2, f"the logprobs of {against} are up to {apart:g} away from those of {what}")
