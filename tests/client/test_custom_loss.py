"""Custom losses: their steps and order, accepted forms, failures, and traced losses."""

from __future__ import annotations

import json
import math
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tolerances import near
from tinker_wire import models

pytest.importorskip("torch")

import torch

import tinker
from tinker._wire import proto
from tinker.custom_loss import LossWithGradients
from tinker.types import CustomLossInput

GOLDEN = Path(__file__).parents[1] / "golden"
MakeDatum = Callable[..., tinker.Datum]
Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams(learning_rate=0.05)


def by_torch(
    data: list[tinker.Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    """Compute cross entropy with the weights of the datums."""
    weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
    parts = [(weight * part).sum() for weight, part in zip(weights, logprobs, strict=True)]
    return -torch.stack(parts).sum(), {"datums": len(data), "first": parts[0]}  # type: ignore[dict-item]


@tinker.with_gradients
def by_numpy(data: list[tinker.Datum], logprobs: list[Any]) -> Any:
    """Compute the same, with an explicit gradient."""
    weights = [datum.loss_fn_inputs["weights"].to_numpy() for datum in data]
    loss = -sum((weight * part).sum() for weight, part in zip(weights, logprobs, strict=True))
    return loss, [-weight for weight in weights], {"datums": len(data)}


def nothing(data: list[tinker.Datum], logprobs: list[Any]) -> Any:
    raise AssertionError("this loss is never to be called")


NEVER = tinker.with_gradients(nothing)


def calls(wire: Any) -> list[Any]:
    return [proto.decode_forward_backward(one.body) for one in wire.requests("forward_backward")]


class Slow:
    """A loss that waits until it may go on; its gradient is 1."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        self.loss = tinker.with_gradients(self._compute)

    def _compute(self, data: Any, logprobs: list[Any]) -> Any:
        self.entered.set()
        assert self.go.wait(10)
        return 0.0, [np.ones_like(part) for part in logprobs]


def train_two(service: tinker.ServiceClient, data: list[tinker.Datum], loss_fn: Any) -> Any:
    """Return the last outputs of two runs, with the server's cross entropy and with this loss."""
    plain, own = (
        service.create_lora_training_client("tinker/toy", rank=4, seed=3) for _ in range(2)
    )
    for _ in range(3):
        plain.forward_backward(data, "cross_entropy")
        own.forward_backward_custom(data, loss_fn)
        for run in (plain, own):
            run.optim_step(ADAM)
    expected = plain.forward_backward(data, "cross_entropy").result(10)
    return expected, own.forward_backward_custom(data, loss_fn).result(10)


@pytest.mark.parametrize("loss_fn", [by_torch, by_numpy])
def test_custom_cross_entropy_trains_like_the_servers(
    service: tinker.ServiceClient, datum: MakeDatum, loss_fn: Any
) -> None:
    """A custom cross entropy trains as the server's, whichever way its gradient is computed."""
    expected, result = train_two(service, [datum([1, 2, 3]), datum([4, 5])], loss_fn)
    assert result.loss == near(expected.loss, 5)
    assert result.metrics["surrogate_loss:sum"] == near(expected.loss, 5)
    assert result.metrics["datums"] == 2
    assert [one["logprobs"].tolist() for one in result.loss_fn_outputs] == [
        one["logprobs"].tolist() for one in expected.loss_fn_outputs
    ]


def test_weights_are_the_negative_gradient(training: tinker.TrainingClient, wire: Any) -> None:
    """The forward pass weighs nothing; the backward pass has minus the gradient as weights."""
    inputs = {"target_tokens": [2, 3, 4], "rewards": np.ones(7, np.float32)}
    given = tinker.Datum(tinker.ModelInput.from_ints([1, 2, 3]), inputs)  # type: ignore[arg-type]

    def loss(data: list[tinker.Datum], logprobs: list[torch.Tensor]) -> Any:
        assert data[0].loss_fn_inputs["rewards"].tolist() == [1.0] * 7
        return (torch.tensor([1.0, 2.0, 3.0]) * logprobs[0]).sum(), {}

    training.forward_backward_custom([given], loss).result(10)
    forward, backward = calls(wire)
    assert {forward.loss_fn, backward.loss_fn} == {"cross_entropy"}
    assert (forward.forward_only, backward.forward_only) == (True, False)
    assert set(forward.data[0].loss_fn_inputs) == {"target_tokens", "weights"}
    assert forward.data[0].loss_fn_inputs["weights"].tolist() == [0.0, 0.0, 0.0]
    assert backward.data[0].loss_fn_inputs["weights"].tolist() == [-1.0, -2.0, -3.0]


def test_later_requests_queue_up(connect: Connect, wire: Any, datum: MakeDatum) -> None:
    """A step called before earlier results is sent whole, in chunks, before later requests."""
    wire.fail("client/config", 200, body={"fwdbwd_max_chunk_len": 2})
    training, slow = connect().create_lora_training_client("tinker/toy", rank=4), Slow()
    step = training.forward_backward_custom([datum([i, i + 1]) for i in range(3)], slow.loss)
    optim, saved = training.optim_step(ADAM), training.save_state("after")
    assert slow.entered.wait(10)
    assert wire.requests("optim_step") == []
    slow.go.set()
    for future in (saved, optim, step):
        future.result(10)
    sent = [(call.seq_id, len(call.data), call.forward_only) for call in calls(wire)]
    assert sent == [(2, 1, True), (1, 2, True), (4, 1, False), (3, 2, False)]
    later = [wire.requests(name)[0].seq_id for name in ("optim_step", "save_weights")]
    assert later == [5, 6]


def test_function_may_block(
    service: tinker.ServiceClient, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """The function may wait for another client, even for a custom loss of its own."""
    reference = service.create_lora_training_client("tinker/toy", rank=2)

    def loss(data: list[tinker.Datum], logprobs: list[Any]) -> Any:
        inner = reference.forward_backward_custom(data, by_numpy).result(10)
        assert threading.current_thread().name.startswith("tinker-user")
        return inner.loss, [np.zeros_like(part) for part in logprobs]

    assert (
        training.forward_backward_custom([datum()], tinker.with_gradients(loss)).result(10).loss > 0
    )


@pytest.mark.parametrize("wire_form", ["json", "proto"])
def test_server_may_name_no_loss(
    connect: Connect, wire: Any, datum: MakeDatum, wire_form: Any
) -> None:
    """The loss is the user's, and the server's value is reported if the server sends one."""
    training = connect(wire=wire_form).create_lora_training_client("tinker/toy", rank=4).result(10)

    def loss(data: list[tinker.Datum], logprobs: list[Any]) -> Any:
        answer = {"loss_fn_outputs": [{}], "metrics": {"tokens:sum": 3.0}}
        wire.fail("retrieve_future", 200, body=answer)
        return (
            np.float32(1.5),
            [np.zeros_like(part) for part in logprobs],
            {"loss:sum": 7.0, "mine": np.float64(2)},
        )

    result = training.forward_backward_custom([datum()], tinker.with_gradients(loss)).result(10)
    assert result.metrics == {"tokens:sum": 3.0, "mine": 2.0, "loss:sum": 1.5}


def test_targets_of_two_dimensions(training: tinker.TrainingClient, wire: Any) -> None:
    """Log-probabilities and gradient have the targets' shape, sparse if those are sparse."""
    dense = torch.zeros(4, 50, dtype=torch.int64)
    dense[1, 7] = 5
    given = tinker.Datum(tinker.ModelInput.from_ints([1, 2, 3, 4]), {"target_tokens": dense})
    logprobs = tinker.TensorData.from_numpy(np.arange(200, dtype=np.float32))
    output = {"logprobs": logprobs.model_dump(exclude_none=True)}
    answer = {"loss_fn_outputs": [output], "metrics": {}}
    for name in ("a", "b"):
        wire.fail("forward_backward", 200, body={"request_id": name})
        wire.fail("retrieve_future", 200, body=answer)
    seen = []

    def loss(data: list[tinker.Datum], parts: list[torch.Tensor]) -> Any:
        seen.extend(parts)
        return parts[0][1, 7] * 3, {}

    training.forward_backward_custom([given], loss).result(10)
    assert [tuple(part.shape) for part in seen] == [(4, 50)]
    assert seen[0][1, 7].item() == 57
    weights = calls(wire)[1].data[0].loss_fn_inputs["weights"]
    assert weights.is_sparse
    assert weights.to_numpy()[1, 7] == -3
    assert np.count_nonzero(weights.to_numpy()) == 1


# ----------------------------------------------------------------------------------------- failures


def failing(data: list[tinker.Datum], logprobs: list[Any]) -> Any:
    raise LookupError("no reward for this")


def leaving(data: list[tinker.Datum], logprobs: list[Any]) -> Any:
    sys.exit(3)


FAILURES: list[tuple[Any, type[Exception], str]] = [
    (failing, LookupError, "no reward for this"),
    (leaving, RuntimeError, "SystemExit"),
    (lambda data, parts: (parts[0].sum(), {}, 5), ValueError, r"must return \(loss, metrics\)"),
    (
        lambda data, parts: (sum(p.sum() for p in parts), {"kl": parts[0]}),
        ValueError,
        r"metrics\['kl'\] .* got a tensor of sh",
    ),
    (
        tinker.with_gradients(lambda data, parts: ("x", parts)),
        ValueError,
        "the custom loss must be a number, got str",
    ),  # type: ignore[arg-type,return-value]
    (lambda data, parts: (parts[0].sum(), {}), ValueError, r"does not depend on logprobs\[1\]"),
    (
        lambda data, parts: (sum(p.sum() for p in parts) * math.nan, {}),
        ValueError,
        r"data\[0\] contains NaN",
    ),
    (lambda data, parts: (sum(p.sum() for p in parts), [1]), ValueError, "must be a mapping"),
    (tinker.with_gradients(lambda data, parts: 3.0), ValueError, r"\(loss, gradients\)"),  # type: ignore[arg-type,return-value]
    (
        tinker.with_gradients(lambda data, parts: (3.0, parts[:1])),
        ValueError,
        "1 gradients for 2 datums",
    ),
    (
        tinker.with_gradients(lambda data, parts: (3.0, [parts[0], parts[1][:1]])),
        ValueError,
        r"data\[1\] has shape \[1\]",
    ),
    (
        tinker.with_gradients(lambda data, parts: (3.0, [p / 0 for p in parts])),
        ValueError,
        r"data\[0\] contains NaN or inf",
    ),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("loss_fn", "error", "message"), FAILURES)
def test_failing_loss(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    datum: MakeDatum,
    loss_fn: Any,
    error: type[Exception],
    message: str,
) -> None:
    """A failing loss fails its future with its error, and later requests with that reason."""
    step = training.forward_backward_custom([datum(), datum([4, 5])], loss_fn)
    optim = training.optim_step(ADAM)
    with pytest.raises(error, match=message):
        step.result(10)
    with pytest.raises(
        tinker.PrecedingRequestFailed, match="the forward_backward_custom before it failed"
    ) as caught:
        optim.result(10)
    assert isinstance(caught.value.__cause__, error)
    assert len(wire.requests("forward_backward")) == 1
    assert wire.requests("optim_step") == []
    other = service.create_lora_training_client("tinker/toy", rank=2)
    assert other.forward([datum()], "cross_entropy").result(10).loss > 0


@pytest.mark.parametrize(
    "output",
    [
        [],
        [{"elementwise_loss": {"data": [1.0], "dtype": "float32"}}],
        [{"logprobs": {"data": [1.0], "dtype": "float32"}}],
    ],
)
def test_forward_pass_without_logprobs(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum, output: list[dict[str, Any]]
) -> None:
    """If a forward pass never returns usable log-probabilities, the step's error says so."""
    wire.fail("retrieve_future", 200, body={"loss_fn_outputs": output, "metrics": {}}, times=3)
    with pytest.raises(
        tinker.APIResponseValidationError,
        match=r"data\[0\].* logprobs|no logprobs|0 outputs for 1 datums",
    ):
        training.forward_backward_custom([datum()], NEVER).result(10)


def test_failed_forward_pass(training: tinker.TrainingClient, wire: Any, datum: MakeDatum) -> None:
    """If the forward pass fails, so do the step and, without a gradient, all later requests."""
    step = training.forward_backward_custom([datum([10**6])], NEVER)
    optim = training.optim_step(ADAM)
    for future, error in (
        (step, tinker.RequestFailedError),
        (optim, tinker.PrecedingRequestFailed),
    ):
        with pytest.raises(error):
            future.result(10)
    assert wire.requests("optim_step") == []


def test_cancelled_before_its_turn(connect: Connect, wire: Any, datum: MakeDatum) -> None:
    """A step cancelled before any part of it was sent is skipped; the client continues."""
    wire.fail("create_model", 503, headers={"retry-after": "1"})
    training = connect().create_lora_training_client("tinker/toy", rank=4)
    step = training.forward_backward_custom([datum()], NEVER)
    assert step.cancel()
    training.optim_step(ADAM).result(10)
    assert wire.requests("forward_backward") == []
    assert wire.requests("optim_step")[0].seq_id == 1


def test_cancelled_after_its_start(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """A step that has begun is completed, so later requests find its gradient."""
    slow = Slow()
    step = training.forward_backward_custom([datum()], slow.loss)
    assert slow.entered.wait(10)
    assert step.cancel()
    slow.go.set()
    training.optim_step(ADAM).result(10)
    assert [call.forward_only for call in calls(wire)] == [True, False]


def test_wrong_arguments_are_refused_on_the_users_line(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No data, no targets and what is no loss are refused by the call; nothing is sent."""
    bare = tinker.Datum(model_input=tinker.ModelInput.from_ints([1]))
    custom: Any = training.forward_backward_custom
    for data, loss, kind, message in (
        ([], NEVER, ValueError, "data is empty"),
        ([datum(), bare], NEVER, ValueError, r"data\[1\].loss_fn_inputs is missing target_tokens"),
        ([datum(), 5], NEVER, TypeError, r"data\[1\] must be a Datum"),
        ([datum()], 5, TypeError, "must be a function"),
    ):
        with pytest.raises(kind, match=message):
            custom(data, loss)
    with (
        pytest.warns(DeprecationWarning, match="loss_type_input"),
        pytest.raises(ValueError, match="'logprobs', got 'logits'"),
    ):
        custom([datum()], NEVER, loss_type_input="logits")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="with_gradients"):
        custom([datum()], by_torch)
    assert isinstance(by_numpy, LossWithGradients)
    assert training.forward_backward_custom([datum()], by_numpy).result(10).loss > 0
    assert len(wire.requests("forward_backward")) == 2


# ------------------------------------------------------------------------------------ traced losses


def fancy(logprobs: torch.Tensor, weights: torch.Tensor) -> Any:
    torch.exp(logprobs)[..., :1] + 0.0
    loss = -(logprobs * weights).clamp(max=math.inf).sum(dim=(0,))
    loss = loss.to(torch.float32)
    return loss, {"custom/neg_ll:sum": loss}


RANKS = {"logprobs": 1, "weights": 1}


def averaging(logprobs: torch.Tensor, weights: torch.Tensor) -> Any:
    loss = -(logprobs * weights).clamp(min=-math.inf).sum()
    return loss, {"custom/nll:sum": loss.detach(), "custom/nll:mean": loss.detach()}


def test_upload_is_as_recorded(connect: Connect, wire: Any, datum: MakeDatum) -> None:
    """A traced graph is uploaded as by the official client, and then referenced by name."""
    recorded = [
        json.loads(line)
        for line in (GOLDEN / "custom_loss_server_side.jsonl").read_text().splitlines()
    ]
    wire.fail("client/config", 200, body={"custom_loss_server_side": True})
    service = connect()
    training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
    wire.fail("create_custom_loss", 200, body={"request_id": "req-0002"})
    wire.fail("retrieve_future", 200, body={"type": "create_custom_loss", "loss_id": "loss-1"})
    handle = service.create_custom_loss(fancy, RANKS).result(10)
    sent = wire.requests("create_custom_loss")[0].json
    expected = recorded[1]["request"]["body"]["json"]
    assert {**sent, "session_id": None} == {**expected, "session_id": None}
    assert (
        wire.requests("retrieve_future")[-1].request.headers["x-tinker-request-type"]
        == "CreateCustomLoss"
    )
    assert handle.loss_id == "loss-1"
    wire.fail("forward_backward", 200, body={"request_id": "req-0003"})
    wire.fail("retrieve_future", 200, body={"loss_fn_outputs": [{}], "metrics": {"loss:sum": 3.0}})
    assert training.forward_backward_custom([datum()], handle).result(10).loss == 3.0
    (call,) = calls(wire)
    assert (call.seq_id, call.loss_fn, call.loss_fn_config, call.forward_only) == (
        1,
        "custom",
        {"loss_id": "loss-1"},
        False,
    )
    assert set(call.data[0].loss_fn_inputs) == {"target_tokens", "weights"}


ASKING = {"client_config": models.ClientConfigResponse(custom_loss_server_side=True)}


@pytest.mark.parametrize("settings", [{}, ASKING])
def test_a_traced_loss_trains_like_the_servers(
    service: tinker.ServiceClient, datum: MakeDatum, wire: Any, settings: dict[str, Any]
) -> None:
    """A traced loss trains the same, uploaded once if the server asks for it, and else here."""
    handle = service.create_custom_loss(averaging, RANKS).result(10)
    expected, result = train_two(service, [datum([1, 2, 3]), datum([4, 5])], handle)
    assert result.loss == near(expected.loss, 5)
    assert result.metrics["custom/nll:sum"] == near(expected.loss, 5)
    assert result.metrics["custom/nll:mean"] == near(expected.loss / 2, 5)
    uploads = wire.requests("create_custom_loss")
    assert len(uploads) == (handle.loss_id is not None) == bool(settings)


def test_handles_are_values(service: tinker.ServiceClient) -> None:
    """Handles are equal, hashable, picklable and list their inputs; a loss is created once."""
    handle = service.create_custom_loss(averaging, RANKS).result(10)
    assert handle.inputs == (
        CustomLossInput(name="logprobs", rank=1),
        CustomLossInput(name="weights", rank=1),
    )
    assert (handle.name, handle.input_names, handle.loss_id) == ("averaging", ("weights",), None)
    again = pickle.loads(pickle.dumps(handle))
    assert (again, hash(again), again.key) == (handle, hash(handle), handle.key)
    assert "graph" not in repr(handle)
    with pytest.raises(ValueError, match="already created the loss 'averaging'"):
        service.create_custom_loss(averaging, RANKS).result(10)
    assert service.create_custom_loss(fancy, RANKS).result(10).key != handle.key


def test_failed_upload_may_be_repeated(connect: Connect, wire: Any) -> None:
    """A loss whose upload failed is not recorded as created; the retry uses the next number."""
    wire.fail("client/config", 200, body={"custom_loss_server_side": True})
    service = connect()
    wire.fail("create_custom_loss", 400, body={"detail": "too fancy"})
    with pytest.raises(tinker.BadRequestError, match="too fancy"):
        service.create_custom_loss(fancy, RANKS).result(10)
    wire.fail("create_custom_loss", 200, body={"request_id": "r"})
    wire.fail("retrieve_future", 200, body={"loss_id": "loss-1"})
    assert service.create_custom_loss(fancy, RANKS).result(10).loss_id == "loss-1"
    assert [one.json["custom_loss_seq_id"] for one in wire.requests("create_custom_loss")] == [0, 1]


def test_handles_and_data_must_fit(
    connect: Connect, training: tinker.TrainingClient, service: Any, datum: MakeDatum
) -> None:
    """A handle of another session and datums that do not fit it are refused at once."""
    handle = service.create_custom_loss(averaging, RANKS).result(10)
    foreign = connect().create_custom_loss(averaging, RANKS).result(10)
    with pytest.raises(ValueError, match="another session"):
        training.forward_backward_custom([datum()], foreign)
    text = tinker.ModelInput.from_ints([1, 2])
    for inputs, message in (
        ({"target_tokens": [1, 2]}, r"datum\[1\].loss_fn_inputs is missing weights"),
        ({"weights": [1.0, 1.0]}, r"datum\[1\].loss_fn_inputs is missing target_tokens"),
        (
            {"target_tokens": [1, 2], "weights": [[1.0], [1.0]]},
            r"datum\[1\]: weights has shape \[2, 1\]",
        ),
    ):
        wrong = tinker.Datum(model_input=text, loss_fn_inputs=inputs)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=message):
            training.forward_backward_custom([datum(), wrong], handle)


CAPTURED = torch.ones(3)
LINEAR = torch.nn.Linear(3, 3)


def returning(make: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    def loss(logprobs: torch.Tensor) -> Any:
        return make(logprobs)

    return loss


UNTRACEABLE: list[tuple[Callable[..., Any], dict[str, int], str]] = [
    (lambda weights: (weights, {}), {"weights": 1}, "first parameter must be named logprobs"),
    (lambda: (0, {}), {}, "first parameter must be named logprobs"),
    (lambda logprobs, x=1: (logprobs, {}), {"logprobs": 1, "x": 0}, "must have a lower-case name"),
    (lambda logprobs, *x: (logprobs, {}), {"logprobs": 1, "x": 0}, "must have a lower-case name"),
    (
        lambda logprobs, Big: (logprobs, {}),
        {"logprobs": 1, "Big": 0},
        "must have a lower-case name",
    ),
    (lambda logprobs, x: (logprobs, {}), {"logprobs": 1}, "input_ranks must name"),
    (lambda logprobs, x: (logprobs, {}), {"logprobs": 1, "x": 3}, "rank of x must be 0, 1 or 2"),
    (lambda logprobs: (logprobs, {}), {"logprobs": 0}, "rank of logprobs must be 1 or 2"),
    (
        returning(lambda p: (p.sum() if p.sum() > 0 else -p.sum(), {})),
        {"logprobs": 1},
        "control flow",
    ),
    (returning(lambda p: (p.sum() * float(p.sum()), {})), {"logprobs": 1}, "cannot be traced"),
    (returning(lambda p: (p.sum() * len(p), {})), {"logprobs": 1}, "'len' is not supported"),
    (returning(lambda p: (sum(p), {})), {"logprobs": 1}, "cannot be iterated"),
    (returning(lambda p: ((p * CAPTURED).sum(), {})), {"logprobs": 1}, "contains a tensor"),
    (returning(lambda p: (LINEAR(p).sum(), {})), {"logprobs": 1}, "cannot be traced"),
    (returning(lambda p: (p.sum() * p.sum().item(), {})), {"logprobs": 1}, r"\.item\(\)"),
    (returning(lambda p: (p.frobnicate(), {})), {"logprobs": 1}, r"\.frobnicate\(\)"),
    (returning(lambda p: (p.sum().backward(), {})), {"logprobs": 1}, r"\.backward\(\)"),
    (returning(lambda p: p.sum()), {"logprobs": 1}, "a tensor and a dict"),
    (returning(lambda p: (p.sum(), [])), {"logprobs": 1}, "a tensor and a dict"),
    (returning(lambda p: (5, {})), {"logprobs": 1}, "a tensor and a dict"),
    (returning(lambda p: (p.sum(), {"nll": p.sum()})), {"logprobs": 1}, "must be named custom/"),
    (
        returning(lambda p: (p.sum(), {"custom/Nll:sum": p.sum()})),
        {"logprobs": 1},
        "must be named custom/",
    ),
    (
        returning(lambda p: (p.sum(), {"custom/nll:max": p.sum()})),
        {"logprobs": 1},
        "must be named custom/",
    ),
    (returning(lambda p: (p.sum(), {"custom/nll:sum": 3.0})), {"logprobs": 1}, "must be a tensor"),
]


@pytest.mark.parametrize(("fn", "ranks", "message"), UNTRACEABLE)
def test_losses_that_cannot_be_traced(
    service: Any, wire: Any, fn: Any, ranks: dict[str, int], message: str
) -> None:
    """What cannot be written as a graph is refused by the call; nothing is sent."""
    with pytest.raises(ValueError, match=rf"^create_custom_loss: .*{message}"):
        service.create_custom_loss(fn, ranks)
    assert wire.exchanges == []


def test_functions_have_their_public_names(service: Any) -> None:
    """Functions of torch, math and operator are written under their public names."""
    from tinker._training.losses import trace

    def wide(logprobs: torch.Tensor) -> Any:
        values, _ = torch.sort(logprobs)
        size = logprobs.shape[0]
        norm = (
            torch.linalg.norm(logprobs)
            + torch.special.expit(logprobs).sum()
            + torch.nn.functional.relu(values).sum()
        )
        cast = logprobs.to("cpu", dtype=torch.float64, memory_format=torch.contiguous_format).sum()
        new = logprobs.new_zeros([2], device=torch.device("cpu"), layout=torch.strided).sum()
        norm = norm + torch.nn.functional.logsigmoid(values).sum()
        return (norm + cast + new + math.exp(norm) + size).to(torch.float32), {}

    nodes = trace(wide, {"logprobs": 1}).graph.nodes
    targets = {node.target for node in nodes if node.op == "call_function"}
    assert targets >= {
        "torch.sort",
        "torch.linalg.norm",
        "torch.special.expit",
        "torch.nn.functional.relu",
        "torch.nn.functional.logsigmoid",
        "math.exp",
        "getattr",
        "operator.getitem",
        "operator.add",
    }
    (to, *_) = (node for node in nodes if node.target == "to")
    assert to.kwargs == {
        "dtype": {"dtype": "float64"},
        "memory_format": {"memory_format": "contiguous_format"},
    }
    (new,) = (node for node in nodes if node.target == "new_zeros")
    assert (new.args[1], new.kwargs) == (
        [2],
        {"device": {"device": "cpu"}, "layout": {"layout": "strided"}},
    )


def test_a_foreign_function_is_refused(service: Any) -> None:
    """A function that torch can trace but no server knows is refused by name."""
    with pytest.raises(
        ValueError, match="calls 'strange_function', which is not a function of torch"
    ):
        service.create_custom_loss(calling_a_strange_function, {"logprobs": 1})


@torch.fx.wrap
def strange_function(value: Any) -> Any:
    return value


def calling_a_strange_function(logprobs: torch.Tensor) -> Any:
    return strange_function(logprobs).sum(), {}


def test_without_torch(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch, tracing raises an error that says torch is needed."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="PyTorch is not installed"):
        service.create_custom_loss(fancy, RANKS)
