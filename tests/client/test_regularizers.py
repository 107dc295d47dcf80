"""Regularized losses: what trains and is reported, how terms run, what fails or is refused."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.tolerances import FLOAT64, near

pytest.importorskip("torch")

import torch

import tinker
from tinker.observing import Event, LossTerm
from tinker.regularizers import (
    LinearWeight,
    LossBreakdown,
    Regularizer,
    WarmUpWeight,
    regularized,
)
from tinker.regularizers._terms import (
    JS,
    KL,
    L1,
    L2,
    Consistency,
    ElasticNet,
    Entropy,
    GradientPenalty,
    LossInput,
    Orthogonality,
)

MakeDatum = Callable[..., tinker.Datum]
Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams(learning_rate=0.05)
# a step in which an error of a gradient stays as small as it is
SMOOTH = tinker.AdamParams(learning_rate=1.0, eps=1.0)


def add(datum: tinker.Datum, **inputs: Any) -> tinker.Datum:
    """Return the datum with further inputs."""
    return tinker.Datum(datum.model_input, {**datum.loss_fn_inputs, **inputs})


def total(data: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """Return a base in torch: the negative sum of all log-probabilities."""
    return -torch.stack([part.sum() for part in logprobs]).sum(), {"mine": 4.0}


def squares(data: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """Return a term in torch."""
    return torch.stack([part.square().sum() for part in logprobs]).sum(), {"datums": len(data)}


@tinker.with_gradients
def squares_in_numpy(data: Any, logprobs: Any) -> Any:
    """Return the same, without torch."""
    value = sum((part**2).sum() for part in logprobs)
    return value, [2 * part for part in logprobs], {"datums": len(data)}


async def squares_later(data: Any, logprobs: list[torch.Tensor]) -> Any:
    """Return the same, as a coroutine."""
    return squares(data, logprobs)


def step(
    training: tinker.TrainingClient, datum: Any, *terms: Regularizer, base: Any = total
) -> Any:
    """Return the metrics of a step on one datum with these terms."""
    loss = regularized(base, terms)
    return training.forward_backward_custom([datum], loss).result(10).metrics


def pair(service: tinker.ServiceClient) -> tuple[tinker.TrainingClient, tinker.TrainingClient]:
    """Return two runs that begin alike."""
    make = service.create_lora_training_client
    return make("tinker/toy", rank=4, seed=3), make("tinker/toy", rank=4, seed=3)


def whole(data: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    """Base and term in one function."""
    return total(data, logprobs)[0] + 0.3 * squares(data, logprobs)[0], {}


# -------------------------------------------------------------------------------------- what trains


@pytest.mark.parametrize("name", ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"])
def test_a_named_base_trains_like_the_servers(
    service: tinker.ServiceClient, datum: MakeDatum, name: str
) -> None:
    """A named base has the loss of the server's, and moves the weights as that does."""
    plain, own = pair(service)
    data = [add(datum([1, 2, 3]), weights=[0.0, 1.0, 0.5]), datum([4, 5])]
    if name != "cross_entropy":
        before = plain.forward(data, "cross_entropy").result(10).loss_fn_outputs
        old = [fields["logprobs"].to_numpy() - 0.3 for fields in before]
        gains = np.float32([1.0, -2.0, 3.0])
        data = [
            add(one, logprobs=values, advantages=gains[: values.size])
            for one, values in zip(data, old, strict=True)
        ]
    config = {"dro": {"beta": 0.1}}.get(name)
    for _ in range(3):
        expected = plain.forward_backward(data, name, config).result(10)
        loss = regularized(name, [], loss_fn_config=config)
        found = own.forward_backward_custom(data, loss).result(10)
        # five terms, log-probabilities near 6 times a ratio or 3
        assert found.loss == near(expected.loss, 5, 40.0)
        for client in (plain, own):
            client.optim_step(SMOOTH).result(10)


@pytest.mark.parametrize(
    ("fn", "mode"),
    [
        (squares, "inline"),
        (squares, "thread"),
        (squares_later, "async"),
        (squares_in_numpy, "inline"),
        (squares_in_numpy, "thread"),
    ],
)
def test_terms_train_in_every_mode(
    service: tinker.ServiceClient, datum: MakeDatum, fn: Any, mode: Any
) -> None:
    """A base and a term train like one combined loss, by torch or numpy and in every mode."""
    one, other = pair(service)
    data = [datum([1, 2, 3]), datum([4, 5])]
    loss = regularized(total, [Regularizer(fn, 0.3, "squares", mode)])
    for _ in range(3):
        expected = one.forward_backward_custom(data, whole).result(10)
        found = other.forward_backward_custom(data, loss).result(10)
        assert found.loss == near(expected.loss, 5, 40.0)
        assert found.metrics["reg/squares/datums"] == 2
        for client in (one, other):
            client.optim_step(ADAM).result(10)


def test_a_mask_that_only_a_term_takes(training: tinker.TrainingClient) -> None:
    """A named base that takes no ``mask`` leaves it to the term that does."""
    inputs: Any = {"target_tokens": np.ones((2, 3), np.int64), "mask": [0.0, 1.0]}
    rows = tinker.Datum(tinker.ModelInput.from_ints([1, 2]), inputs)
    metrics = step(training, rows, Regularizer(L1(mask="mask")), base="cross_entropy")
    assert 0 < metrics["reg/l1/value"] < metrics["base/loss"]


# --------------------------------------------------------------------------------- what is reported


def test_metrics(training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """A step reports all metrics as numbers, and the same grouped by term."""
    seen: list[Any] = []

    def base(data: Any, logprobs: list[torch.Tensor]) -> Any:
        seen.extend(part.detach().numpy().copy() for part in logprobs)
        return total(data, logprobs)

    terms = [Regularizer(squares, 0.5), Regularizer(L1(), 2.0)]
    output = training.forward_backward_custom(
        [datum([1, 2, 3]), datum([4, 5])], regularized(base, terms, track_grad_norms=True)
    )
    metrics = output.result(10).metrics
    x = np.concatenate(seen)
    gradients = [-np.ones_like(x), 2 * x, -np.ones_like(x)]
    norms = [float(np.linalg.norm(one)) for one in gradients]
    expected = {
        "mine": 4.0,
        "base/loss": -x.sum(),
        "base/grad_norm": norms[0],
        "reg/squares/value": (x**2).sum(),
        "reg/squares/weight": 0.5,
        "reg/squares/contribution": 0.5 * (x**2).sum(),
        "reg/squares/datums": 2,
        "reg/squares/grad_norm": norms[1],
        "reg/squares/grad_norm_weighted": 0.5 * norms[1],
        "reg/l1/value": -x.sum(),
        "reg/l1/weight": 2.0,
        "reg/l1/contribution": -2 * x.sum(),
        "reg/l1/mean": -x.mean(),
        "reg/l1/grad_norm": norms[2],
        "reg/l1/grad_norm_weighted": 2 * norms[2],
        "reg/total": 0.5 * (x**2).sum() - 2 * x.sum(),
        "total_grad_norm": np.linalg.norm(gradients[0] + 0.5 * gradients[1] + 2 * gradients[2]),
        "loss:sum": 0.5 * (x**2).sum() - 3 * x.sum(),
    }
    found = {name: value for name, value in metrics.items() if name in expected}
    assert found == near(expected, 10, float((x**2).sum()))
    assert metrics.keys() - expected.keys() == {"surrogate_loss:sum", "tokens:sum", "weights:sum"}
    assert all(type(value) is float for value in metrics.values())
    breakdown = LossBreakdown.from_metrics(metrics)
    assert breakdown.total == near(metrics["loss:sum"], 3, unit=FLOAT64)
    assert list(breakdown.terms) == ["squares", "l1"]
    assert breakdown.terms["squares"].metrics == {"datums": 2.0}
    assert breakdown.terms["l1"].grad_norm_weighted == metrics["reg/l1/grad_norm_weighted"]
    with pytest.raises(ValueError, match="not the metrics"):
        LossBreakdown.from_metrics({"loss:sum": 1.0})


def test_constant_terms_are_counted(
    training: tinker.TrainingClient, datum: MakeDatum, caplog: pytest.LogCaptureFixture
) -> None:
    """A term without the log-probabilities is in the loss, has no norm, and is logged once."""
    judge = Regularizer(lambda data, logprobs: (5.0, {"own": 1.0}), 2.0, "judge")
    loss = regularized("cross_entropy", [judge, Regularizer(squares)], track_grad_norms=True)
    with caplog.at_level(logging.WARNING, logger="tinker.regularizers"):
        for _ in range(2):
            metrics = training.forward_backward_custom([datum()], loss).result(10).metrics
    found = [metrics[f"reg/judge/{name}"] for name in ("value", "contribution", "own")]
    assert found == [5.0, 10.0, 1.0]
    assert "reg/judge/grad_norm" not in metrics
    assert "reg/squares/grad_norm" in metrics
    words = "the regularizer 'judge' does not depend on the log-probabilities: it trains nothing"
    assert caplog.messages == [words]


def test_observers_hear_of_terms(connect: Connect, datum: MakeDatum) -> None:
    """Each term of each step is an event, in order, with its numbers or its error."""
    events: list[Event] = []
    training = connect(observers=[events.append]).create_lora_training_client("tinker/toy", rank=4)
    metrics = step(training, datum(), Regularizer(squares, 0.5), Regularizer(L1()))
    broken = Regularizer(lambda data, logprobs: 1 / 0, name="broken")
    with pytest.raises(tinker.LossTermError):
        step(training, datum(), broken, Regularizer(L1()))
    first, *others = [event for event in events if isinstance(event, LossTerm)]
    assert (first.name, first.step, first.weight, first.error) == ("squares", 0, 0.5, None)
    assert first.value == metrics["reg/squares/value"]
    assert first.contribution == metrics["reg/squares/contribution"]
    assert None not in (first.grad_norm, first.seconds)
    assert [(event.name, type(event.error), event.value is None) for event in others] == [
        ("l1", type(None), False),
        ("broken", tinker.LossTermError, True),
        ("l1", type(None), False),
    ]


# ---------------------------------------------------------------------------------------- schedules


def test_steps(training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """Schedules count evaluations from a given start, without failures; steps can be given."""
    fails = [False, True, False, False, False]

    def shaky(data: Any, logprobs: Any) -> Any:
        if fails.pop(0):
            raise LookupError("not now")
        return squares(data, logprobs)

    loss = regularized(total, [Regularizer(shaky, LinearWeight(0.0, 1.0, steps=10))], first_step=3)
    weights: list[float | None] = []
    for one in (loss, loss, loss, loss.at_step(8), loss):
        output = training.forward_backward_custom([datum()], one)
        failed = output.exception(10) is not None
        weights.append(None if failed else output.result(10).metrics["reg/shaky/weight"])
    known = (0.3, None, 0.4, 0.8, 0.5)
    assert weights == [one and near(one, unit=FLOAT64) for one in known]
    assert loss.at_step(8).terms == loss.terms


# ----------------------------------------------------------------------------------------- failures


async def never(data: Any, logprobs: Any) -> Any:
    """A coroutine that ends only when it is cancelled."""
    await asyncio.Event().wait()


async def impatient(data: Any, logprobs: Any) -> Any:
    raise TimeoutError("the judge sleeps")


def leaving(data: Any, logprobs: Any) -> Any:
    sys.exit(3)


FAILURES: list[tuple[Any, Any, str]] = [
    (lambda data, parts: [][1], "inline", "IndexError: list index out of range"),
    (lambda data, parts: [][1], "thread", "IndexError: list index out of range"),
    (leaving, "inline", "SystemExit: 3"),
    (leaving, "thread", "SystemExit: 3"),
    (impatient, "async", "TimeoutError: the judge sleeps"),
    (never, "async", "TimeoutError: no result within 0.05 s"),
    (
        lambda data, parts: (parts[0].sum(), {}),
        "async",
        "TypeError: mode='async' needs a coroutine function",
    ),
    (lambda data, parts: parts[0].sum(), "inline", r"it must return \(value, metrics\)"),
    (lambda data, parts: (parts[0], {}), "inline", "a tensor with one value"),
    (lambda data, parts: ("1", {}), "inline", "a tensor with one value"),
    (lambda data, parts: (parts[0].sum(), [1]), "inline", "must be a mapping"),
    (
        lambda data, parts: (parts[0].sum() * math.inf, {}),
        "inline",
        "contains NaN or infinity|its value is -inf",
    ),
    (
        lambda data, parts: ((parts[0] - parts[0]).sqrt().sum(), {}),
        "inline",
        "contains NaN or infinity",
    ),
    (lambda data, parts: (math.nan, {}), "inline", "its value is nan"),
    (lambda data, parts: (parts[0].sum(), {"value": 1.0}), "inline", "its metric 'value'"),
    (tinker.with_gradients(lambda data, parts: 3.0), "inline", r"\(loss, gradients\)"),  # type: ignore[arg-type,return-value]
    (tinker.with_gradients(lambda data, parts: (1.0, [parts[0][:1]])), "thread", "has shape"),
    (tinker.with_gradients(lambda data, parts: (math.nan, parts)), "inline", "its value is nan"),
    (lambda step: -1.0, "weight", "'culprit' failed"),
    (lambda step: math.nan, "weight", "'culprit' failed"),
    (lambda step: "heavy", "weight", "'culprit' failed"),
    (lambda step: 1 / step, "weight", "ZeroDivisionError"),
    (KL(lambda data: [np.zeros(7)]), "inline", r"the reference of data\[0\] has shape \[7\]"),
]


@pytest.mark.parametrize(("fn", "mode", "message"), FAILURES)
def test_failing_term(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum, fn: Any, mode: Any, message: str
) -> None:
    """A term or schedule that raises, or returns no number, fails the step; nothing is sent."""
    how = {"weight": fn} if mode == "weight" else {"mode": mode}
    culprit = Regularizer(squares if mode == "weight" else fn, name="culprit", **how)
    seconds = 0.05 if fn is never else 30.0
    loss = regularized(total, [Regularizer(squares), culprit], timeout_seconds=seconds)
    failed = training.forward_backward_custom([datum()], loss)
    optim = training.optim_step(ADAM)
    with pytest.raises(tinker.LossTermError, match=message) as caught:
        failed.result(10)
    assert str(caught.value).startswith("the regularizer 'culprit' failed: ")
    assert caught.value.term == "culprit"
    assert caught.value.__cause__ is not None
    with pytest.raises(tinker.PrecedingRequestFailed):
        optim.result(10)
    assert len(wire.requests("forward_backward")) == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.term, str(again)) == ("culprit", str(caught.value))


def test_slow_thread(training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """A thread that exceeds the timeout fails the step; the next step works all the same."""
    go = threading.Event()
    fn = lambda data, parts: (parts[0].sum() * go.wait(10), {})  # noqa: E731
    slow = Regularizer(fn, name="slow", mode="thread")
    loss = regularized(total, [slow], timeout_seconds=0.05)
    words = r"'slow' failed: TimeoutError: no result within 0\.05 s"
    with pytest.raises(tinker.LossTermError, match=words):
        training.forward_backward_custom([datum()], loss).result(10)
    go.set()
    assert step(training, datum(), slow)["reg/slow/value"] < 0


def test_terms_run_concurrently(training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """Threads and coroutines run concurrently, and while the base is computed."""
    together = threading.Barrier(3)

    async def meet_later(data: Any, parts: Any) -> Any:
        together.wait(10)
        return squares(data, parts)

    def meet(data: Any, parts: Any) -> Any:
        together.wait(10)
        return squares(data, parts)

    a, b = (Regularizer(meet, 1, "a", "thread"), Regularizer(meet_later, 1, "b", "async"))
    metrics = step(training, datum(), a, b, base=meet)
    assert metrics["reg/a/value"] == metrics["reg/b/value"] == metrics["base/loss"]


def test_terms_do_not_affect_each_other(training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """A term may change its arrays without affecting others; a base fails as a custom loss does."""

    def careless(data: Any, parts: Any) -> Any:
        for part in parts:
            part *= 0
        return 0.0, parts

    a, b = (Regularizer(tinker.with_gradients(careless), name=name) for name in "ab")
    metrics = step(training, datum(), a, Regularizer(squares), b, base=a.fn)
    assert metrics["reg/squares/value"] > 0
    endless = tinker.with_gradients(lambda data, parts: (math.inf, parts))
    for base, error in ((lambda d, p: 1 / 0, ZeroDivisionError), (endless, ValueError)):
        with pytest.raises(error, match=r"division|the base loss is inf"):
            step(training, datum(), Regularizer(squares), base=base)


# ---------------------------------------------------------------------------------- what is refused


def test_wrong_data_is_refused_on_the_users_line(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Data that a base or a term cannot use are refused by the call, with term, datum and input."""
    targets: Any = {"target_tokens": np.zeros((1, 3), np.int64)}
    rows = tinker.Datum(tinker.ModelInput.from_ints([1]), targets)
    ready = add(datum(), ref=np.zeros(3, np.float32))
    sampled = add(datum(), logprobs=[0.0] * 3, advantages=[0.0] * 3)

    class Picky:
        def __call__(self, data: Any, logprobs: Any) -> Any:
            raise AssertionError("never called")

        def check(self, data: Any) -> None:
            raise ValueError("data[0] smells")

    cases: list[tuple[list[tinker.Datum], Any, Any, str]] = [
        (
            [ready, datum()],
            total,
            KL("ref"),
            r"regularizer 'term': data\[1\].loss_fn_inputs is missing 'ref'",
        ),
        (
            [add(datum(), ref=np.zeros((3, 2), np.float32))],
            total,
            KL("ref"),
            r"data\[0\].loss_fn_inputs\['ref'\] has shape \[3, 2\]",
        ),
        (
            [add(rows, ref=[0.0])],
            total,
            KL("ref"),
            r"\['ref'\] has shape \[1\], target_tokens has \[1, 3\]",
        ),
        (
            [ready],
            total,
            KL("ref", mask="counted"),
            r"data\[0\].loss_fn_inputs is missing 'counted'",
        ),
        (
            [add(ready, counted=[0.0] * 3)],
            total,
            L1(mask="counted"),
            "'counted' is 0 in every datum",
        ),
        ([ready], total, KL([np.zeros(3)] * 2), "the reference has 2 arrays for 1 datums"),
        ([ready], total, KL("ref", direction="reverse"), "choose an estimator"),
        ([rows], total, KL([np.zeros((1, 3))], estimator="k1"), "choose a direction"),
        ([ready], total, JS("ref"), r"data\[0\]: JS needs target_tokens of shape \[N, K\]"),
        ([ready], total, Consistency("ref", metric="kl"), r"data\[0\]: metric='kl' needs"),
        ([ready], total, Entropy(normalize=True), "temperature and normalize need"),
        ([rows], total, Entropy(estimator="mean"), "estimator needs"),
        ([ready, rows], total, Entropy(), "use one shape in a step"),
        (
            [ready, datum([4, 5])],
            total,
            Orthogonality(),
            r"data\[1\] has target_tokens of shape \[2\]",
        ),
        (
            [datum()],
            total,
            L2(center=LossInput("ref")),
            r"data\[0\].loss_fn_inputs is missing 'ref'",
        ),
        (
            [datum()],
            total,
            L1(target=LossInput("ref")),
            r"data\[0\].loss_fn_inputs is missing 'ref'",
        ),
        (
            [datum()],
            total,
            GradientPenalty(total, mode="interpolated", reference="ref"),
            "is missing 'ref'",
        ),
        ([datum()], total, Picky(), r"regularizer 'term': data\[0\] smells"),
        ([datum()], "ppo", L1(), r"base: data\[0\].loss_fn_inputs is missing 'advantages'"),
        ([add(sampled, sequence_ratio_mask=[1.0] * 3)], "ppo", L1(), "has 'sequence_ratio_mask'"),
        (
            [add(datum(), weights=np.zeros((3, 1), np.float32))],
            "cross_entropy",
            L1(),
            r"data\[0\].loss_fn_inputs\['weights'\] has",
        ),
    ]
    for data, base, term, message in cases:
        loss = regularized(base, [Regularizer(term, name="term")])
        with pytest.raises(ValueError, match=message):
            training.forward_backward_custom(data, loss)
    assert wire.requests("forward_backward") == []


def test_wrong_arguments_are_refused(service: tinker.ServiceClient) -> None:
    """Invalid bases, terms, weights, names, modes and options are refused where they are given."""
    make: Any = regularized
    term: Any = Regularizer
    fine = Regularizer(squares)
    traced = service.create_custom_loss(lambda logprobs: (logprobs.sum(), {}), {"logprobs": 1})
    handle = traced.result(10)  # the server may compute it
    two = [tinker.Datum(tinker.ModelInput.from_ints([1]), {"target_tokens": [2]})] * 2  # type: ignore[dict-item]
    penalty = GradientPenalty(squares, mode="interpolated", reference=[np.zeros(1)] * 2)
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (
            lambda: make("gspo", []),
            ValueError,
            "base must be a loss function or one of cross_entropy, .* got 'gspo'",
        ),
        (lambda: make(5, []), TypeError, "must be a function"),
        (lambda: make(handle, []), TypeError, "base must be a function: a LossHandle"),
        (lambda: term(handle), TypeError, "fn must be a function"),
        (
            lambda: make(total, [squares]),
            TypeError,
            r"terms\[0\] must be a Regularizer, got function",
        ),
        (lambda: make(total, [fine, fine]), ValueError, "several are called 'squares'"),
        (
            lambda: make(total, [], loss_fn_config={"beta": 1}),
            ValueError,
            "goes with a base that is the name",
        ),
        (
            lambda: make("dro", [], loss_fn_config={"bata": 1}),
            ValueError,
            "unknown loss_fn_config key 'bata'; dro takes beta",
        ),
        (
            lambda: make("dro", [], loss_fn_config={"beta": math.nan}),
            ValueError,
            r"loss_fn_config\['beta'\] must be a finite",
        ),
        (
            lambda: make("ppo", [], loss_fn_config={"clip_low_threshold": 2.0}),
            ValueError,
            "is above clip_high_threshold",
        ),
        (lambda: make(total, [], timeout_seconds=0), ValueError, "timeout_seconds must be above 0"),
        (
            lambda: make(total, [], timeout_seconds="1"),
            TypeError,
            "timeout_seconds must be a number",
        ),
        (lambda: make(total, [], first_step=-1), ValueError, "first_step must be at least 0"),
        (lambda: make(total, []).at_step(1.5), TypeError, "step must be an integer"),
        (lambda: term(5), TypeError, "fn must be a function"),
        (lambda: term(L1), TypeError, "fn must be a function"),
        (lambda: term(squares, -1), ValueError, "weight must be finite and not negative, got -1"),
        (lambda: term(squares, math.inf), ValueError, "weight must be finite"),
        (lambda: term(squares, "1"), TypeError, "weight must be a number, got '1'"),
        (lambda: term(squares, True), TypeError, "weight must be a number"),
        (lambda: term(squares, 1, "a/b"), ValueError, "needs a name, without '/'"),
        (lambda: term(squares, 1, 5), TypeError, "name must be a string"),
        (lambda: term(lambda data, parts: 0), ValueError, "needs a name"),
        (
            lambda: term(squares, mode="process"),
            ValueError,
            "mode must be one of inline, thread, async; got 'process'",
        ),
        (lambda: term(squares_later), ValueError, "give it mode='async'"),
        (lambda: WarmUpWeight(-1.0, 5), ValueError, "weight must be finite"),
        (lambda: WarmUpWeight(1.0, 0), ValueError, "steps must be at least 1"),
        (lambda: WarmUpWeight(1.0, 2.5), TypeError, "steps must be an integer"),  # type: ignore[arg-type]
        (lambda: KL(5), TypeError, "reference must be the name of a loss input"),  # type: ignore[arg-type]
        (lambda: KL("ref", estimator="k4"), ValueError, "estimator"),  # type: ignore[arg-type]
        (lambda: L1(reduction="max"), ValueError, "reduction"),  # type: ignore[arg-type]
        (lambda: L1(target="tokens"), ValueError, "target must be"),  # type: ignore[arg-type]
        (lambda: L2(center="median"), ValueError, "center must be"),  # type: ignore[arg-type]
        (lambda: L2(clip=0.0), ValueError, "clip"),
        (lambda: ElasticNet(l1_ratio=1.5), ValueError, "l1_ratio"),
        (lambda: Entropy(temperature=0.0), ValueError, "temperature"),
        (lambda: GradientPenalty(total, mode="interpolated"), ValueError, "go together"),
        (lambda: penalty(two, [torch.zeros(1, requires_grad=True)]), ValueError, "shorter"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()


def test_without_torch(
    training: tinker.TrainingClient, datum: MakeDatum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named base and terms with gradients need no torch; a term in torch raises at once."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="PyTorch is not installed"):
        regularized("cross_entropy", [Regularizer(KL("ref"))])
    term = Regularizer(squares_in_numpy, 0.1, mode="thread")
    loss = regularized("cross_entropy", [term], track_grad_norms=True)
    metrics = training.forward_backward_custom([datum()], loss).result(10).metrics
    assert metrics["reg/squares_in_numpy/grad_norm"] > 0
