# ruff: noqa: E402 (torch is optional, so its absence skips before the imports)
"""Custom losses traced by clients: values, exact gradients, and what they may not do."""

from __future__ import annotations

import builtins
import json
import logging
import math
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from support.api import Api, custom_loss_body, datum, node
from support.tolerances import assert_near, near

from tinker.local.engines import PACKAGED_MODEL
from tinker.local.engines.protocol import EngineError, LossResult
from tinker.local.engines.toy import ToyEngine
from tinker.local.losses import evaluation

TOKENS = [104, 101, 300, 7]
TARGETS = [101, 300, 7, 104]


def traced(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the graph of a function as a client uploads it, as torch's tracer finds its nodes."""
    nodes: list[dict[str, Any]] = []
    for one in torch.fx.symbolic_trace(fn).graph.nodes:
        target = one.target
        if target is builtins.getattr:
            target = "getattr"
        elif one.op == "call_function":
            name = torch.fx.node._get_qualified_name(target)
            target = name.replace("_operator.", "operator.")
        made = node(one.op, one.name, str(target), *map(encoded, one.args))
        nodes.append(
            {**made, "kwargs": {name: encoded(value) for name, value in one.kwargs.items()}}
        )
    return {"nodes": nodes}


def encoded(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"ref": value.name}
    if isinstance(value, tuple):
        return {"tuple": [encoded(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": {name: encoded(item) for name, item in value.items()}}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return [encoded(item) for item in value] if isinstance(value, list) else value


def upload(api: Api, session: str, number: int = 0, **fields: Any) -> str:
    """Upload a custom loss; return its id."""
    body = custom_loss_body(session, number, **fields)
    return api.result(api.ok("create_custom_loss", body))["loss_id"]


def inputs(**ranks: int) -> list[dict[str, Any]]:
    return [{"name": name, "rank": rank} for name, rank in {"logprobs": 1, **ranks}.items()]


def custom(loss_id: str, *data: Any) -> dict[str, Any]:
    return {"loss_fn": "custom", "loss_fn_config": {"loss_id": loss_id}, "data": list(data)}


def loss_of(api: Api, *data: Any, **fields: Any) -> Any:
    """Return the result of a custom loss on some datums with a fresh model, or its failure."""
    session, model = api.begin()
    return api.result(api.loss(model, 1, **custom(upload(api, session, **fields), *data)))


ONE = datum([1], [2])


# What custom losses compute


class NotingEngine(ToyEngine):
    """An engine that keeps the gradients of the last backward pass."""

    weights: list[list[float]]

    def forward_backward(self, adapter_id: str, data: Any, *of: Any, backward: bool) -> LossResult:
        if backward:
            self.weights = [np.asarray(one.loss_inputs["weights"]).tolist() for one in data]
        return super().forward_backward(adapter_id, data, *of, backward=backward)


def policy(logprobs: Any, advantages: Any, old: Any) -> Any:
    ratio = torch.exp(logprobs - old)
    clipped = ratio.clamp(min=0.8, max=1.2)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    kl = (old - logprobs).mean()
    return -gain.sum() + 0.1 * kl, {
        "custom/kl:mean": kl.detach(),
        "custom/clipped:sum": (ratio != clipped).sum(),
    }


def indexing(logprobs: Any, scale: Any) -> Any:
    parts = logprobs[..., 1:None].reshape(-1)
    total = torch.nn.functional.softplus(-parts).to(torch.float64) * scale
    total += math.sqrt(2.0)
    return total.max() + torch.logsumexp(parts, dim=0) / logprobs.shape[0], {
        "custom/max:mean": total.amax()
    }


def containers(logprobs: Any, target_tokens: Any) -> Any:
    values, places = torch.topk(logprobs, 2)
    both = torch.stack([values.sum(), torch.clamp(values.mean(), max=float("inf"))])
    known = torch.where(target_tokens > 100, logprobs, torch.zeros_like(logprobs))
    return both.prod() + known.square().mean() + 0.0 * places.sum(), {}


@pytest.mark.numeric
@pytest.mark.parametrize("fn", [policy, indexing, containers])
def test_losses_have_their_own_value_and_gradient(make_api: Any, fn: Callable[..., Any]) -> None:
    """A graph has the value and gradient of the function itself, summed over the datums."""
    engine = NotingEngine(vocabulary=512)
    api = make_api(engine)
    given = {
        "policy": {"advantages": [1.0, -1.0, 2.0, 0.5], "old": [-2.0, -3.0, -1.0, -9.0]},
        "indexing": {"scale": [1.0, 2.0, 3.0]},
        "containers": {},
    }[fn.__name__]
    data = [datum(TOKENS, TARGETS, **given)] * 2
    ranks = dict.fromkeys(given, 1) or {"target_tokens": 1}
    result = loss_of(api, *data, name=fn.__name__, inputs=inputs(**ranks), graph=traced(fn))
    logprobs = torch.tensor(result["loss_fn_outputs"][0]["logprobs"]["data"], requires_grad=True)
    arguments = [torch.tensor(values) for values in given.values()] or [torch.tensor(TARGETS)]
    loss, metrics = fn(logprobs, *arguments)
    loss.backward()
    # the terms are products of two numbers like them
    size = 2 * float(logprobs.detach().square().sum())
    assert result["metrics"].pop("loss:sum") == near(2 * float(loss.detach()), 8, size)
    assert logprobs.grad is not None
    for weights in engine.weights:
        assert_near(weights, -logprobs.grad, 8, size)
    expected = {
        name: float(value.detach()) * (2 if name.endswith(":sum") else 1)
        for name, value in metrics.items()
    }
    assert result["metrics"] == near(expected, 8, size)


def test_several_targets_for_each_position(api: Api) -> None:
    """Log-probabilities have the shape of the targets."""

    def spread(logprobs: Any) -> Any:
        return logprobs.std(dim=-1).sum(), {}

    table = {"data": [1, 2, 3, 4], "dtype": "int64", "shape": [2, 2]}
    one = {**datum([5, 6], [0, 0]), "loss_fn_inputs": {"target_tokens": table}}
    result = loss_of(api, one, inputs=inputs(logprobs=2), graph=traced(spread))
    logprobs = torch.tensor(result["loss_fn_outputs"][0]["logprobs"]["data"]).reshape(2, 2)
    assert result["metrics"]["loss:sum"] == near(
        float(logprobs.std(dim=-1).sum()), 4, float(logprobs.abs().sum())
    )


def test_forward_alone_leaves_no_gradient(api: Api) -> None:
    """A forward pass leaves no gradient, and takes a loss that has none."""
    session, model = api.begin()

    def constant(logprobs: Any) -> Any:
        return torch.zeros_like(logprobs).sum(), {}

    loss_id = upload(api, session, inputs=inputs(), graph=traced(constant))
    body = {"model_id": model, "seq_id": 1, "forward_input": custom(loss_id, ONE)}
    assert api.metrics(api.ok("forward", body)) == {"loss:sum": 0.0}
    assert api.metrics(api.step(model, 2))["grad_norm:mean"] == 0
    api.fails("does not depend on logprobs", api.loss(model, 3, **custom(loss_id, ONE)))


def test_the_torch_engine_computes_them_too(make_api: Any) -> None:
    """The torch engine evaluates the same graph, and steps lower its loss."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tinker.local.engines.torch import TorchEngine

    api = make_api([TorchEngine(PACKAGED_MODEL, device="cpu")])
    session = api.session()
    model, loss_id = api.model(session, base_model=PACKAGED_MODEL), upload(api, session)
    losses: list[float] = []
    for number in range(1, 9, 2):
        data = datum([104, 101], [101, 108], weights=[1.0, 1.0])
        losses.append(api.metrics(api.loss(model, number, **custom(loss_id, data)))["loss:sum"])
        api.result(api.step(model, number + 1, learning_rate=0.01))
    assert losses == sorted(losses, reverse=True)


def test_a_loss_belongs_to_its_session(api: Api) -> None:
    """A number and body is one loss of one session; another body under the number is 409."""
    session, other = api.session(), api.session()
    body = custom_loss_body(session)
    first = api.ok("create_custom_loss", body)
    assert api.ok("create_custom_loss", body) == first
    assert api.refused("create_custom_loss", {**body, "name": "else"})[0] == 409
    loss_id = api.result(first)["loss_id"]
    assert upload(api, session, 1) != loss_id
    api.fails("no custom loss", api.loss(api.model(other), 1, **custom(loss_id, ONE)))
    assert api.refused("create_custom_loss", custom_loss_body("nobody"))[0] == 404


# Identity


@pytest.mark.parametrize("config", [{}, {"loss_id": 1.0}, {"loss_id": "x", "other": 1.0}])
def test_a_custom_loss_is_named_by_its_id(api: Api, config: dict[str, Any]) -> None:
    """A request without a custom loss's id, or with more than the id, is a user error."""
    body = {"loss_fn": "custom", "loss_fn_config": config}
    assert "loss_id" in api.failure(api.loss(api.model(), 1, **body))[1]


# What custom losses may not do


def graph(*nodes: dict[str, Any], loss: str = "last") -> dict[str, Any]:
    """Return a graph of one input, some nodes, and an output."""
    first = node("placeholder", "logprobs", "logprobs")
    last = node("call_method", "last", "sum", {"ref": nodes[-1]["name"] if nodes else "logprobs"})
    output = node("output", "output", "output", {"tuple": [{"ref": loss}, {"dict": {}}]})
    return {"nodes": [first, *nodes, last, output]}


def call(target: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return node("call_function", "n", target, *args, **kwargs)


REF = {"ref": "logprobs"}


def method(name: str, *args: Any) -> dict[str, Any]:
    return node("call_method", "n", name, *args)


FUNCTIONS = {
    "os.system": "os.system",
    "builtins.eval": "builtins.eval",
    "torch.load": "torch.load",
    "torch.save": "torch.save",
    "torch.ops.aten.add": "torch.ops",
    "torch.hub.load": "torch.hub",
    "torch._C._nn.linear": "torch._C",
    "torch.functional.stft": "stft",
    **{f"operator.{name}": name for name in ("attrgetter", "setitem", "lshift")},
}


METHODS = ("numpy", "item", "backward", "__class__", "add_", "register_hook")


END = {"dict": {}}


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        *((graph(call(name, REF)), said) for name, said in FUNCTIONS.items()),
        *((graph(method(name, REF)), f"'{name}'") for name in METHODS),
        (graph(node("call_module", "n", "linear", REF)), "call_module"),
        (graph(node("get_attr", "n", "weight")), "get_attr"),
        (graph(call("torch.exp", REF, out=REF)), "'out'"),
        (graph(call("torch.exp", {"ref": "later"})), "'later'"),
        (graph(call("torch.exp", {"ref": ["logprobs"]})), "not a valid ref"),
        (graph(call("torch.exp", {"code": "1"})), "unknown form"),
        (graph(call("torch.exp", {})), "unknown form"),
        (graph(call("torch.exp", {"tuple": 1})), "not a valid tuple"),
        (graph(call("torch.exp", {"dict": []})), "not a valid dict"),
        (graph(node("placeholder", "n", "secrets")), "'secrets'"),
        (graph(node("call_function", "logprobs", "torch.exp", REF)), "two nodes"),
        (graph(loss="nothing"), "'nothing'"),
        ({"nodes": []}, "0 nodes"),
        ({"nodes": [node("placeholder", "logprobs", "logprobs")]}, "output node"),
        ({"nodes": [node("output", "o", "output", 1)]}, "must return"),
        ({"nodes": [node("output", "o", "output", {"tuple": [1.0, END]})]}, "must return"),
        ({**graph(), "format": 2}, "format 2"),
    ],
)
def test_a_graph_that_may_not_be_is_refused(api: Api, nodes: dict[str, Any], said: str) -> None:
    """Only listed functions, methods and forms of arguments are taken; the error names others."""
    body = custom_loss_body(api.session(), inputs=inputs(), graph=nodes)
    api.refuses(400, said, "create_custom_loss", body)


@pytest.mark.parametrize("name", ["loss:sum", "custom/x", "custom/X:sum", "custom/x:max"])
def test_a_metric_has_a_name_that_says_how_it_combines(api: Api, name: str) -> None:
    """A metric is custom/<name>:sum or :mean, so that it cannot pass for one of the server's."""
    made = graph()
    made["nodes"][-1]["args"] = [{"tuple": [{"ref": "last"}, {"dict": {name: {"ref": "last"}}}]}]
    body = custom_loss_body(api.session(), inputs=inputs(), graph=made)
    api.refuses(400, name, "create_custom_loss", body)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [{"name": "weights", "rank": 1}],
        [*inputs(), {"name": "logprobs", "rank": 1}],
        [*inputs(), {"name": "A", "rank": 1}],
        [*inputs(), {"name": "a", "rank": 3}],
        inputs(**{f"a{number}": 1 for number in range(16)}),
    ],
)
def test_inputs_have_rules(api: Api, wrong: list[dict[str, Any]]) -> None:
    """Inputs are logprobs first, at most sixteen, in lower case, with up to two dimensions."""
    body = custom_loss_body(api.session(), inputs=wrong, graph=graph())
    assert api.refused("create_custom_loss", body)[0] == 400


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (call("getattr", REF, "grad_fn"), "'grad_fn'"),
        (call("getattr", REF, "__class__"), "'__class__'"),
        (call("getattr", "text", "shape"), "may read"),
        (call("operator.getitem", {"dict": {"a": 1}}, "a"), "have items"),
        (call("operator.getitem", REF, 99), "out of bounds"),
        (call("operator.mul", [1], 10**9), "numbers or tensors"),
        (call("operator.mul", "a", 10**9), "numbers or tensors"),
        (call("operator.mul", 10**18, 10**18), "64 bits"),
        (call("operator.pow", 10.0, 1e9), "n"),
        (call("torch.zeros", 10**9, 10**9), "bytes"),
        (call("torch.zeros", {"tuple": [10**5, 10**5]}), "bytes"),
        (node("call_method", "n", "repeat", REF, 10**10), "bytes"),
        (node("call_method", "n", "sum", 1.0), "must be a tensor"),
        (call("torch.matmul", REF, 5), "n"),
        (call("torch.zeros_like", REF, dtype={"dtype": "load"}), "'load'"),
    ],
)
def test_a_graph_that_fails_is_the_users(api: Api, made: dict[str, Any], said: str) -> None:
    """What cannot be evaluated is a user error with datum, node and reason; the model goes on."""
    session, model = api.begin()
    loss_id = upload(api, session, inputs=inputs(), graph=graph(made))
    error = api.fails(said, api.loss(model, 1, **custom(loss_id, ONE)))
    assert error.startswith("data[0]: the loss 'nll': node 'n'")
    assert "loss:sum" in api.metrics(api.loss(model, 2))


def test_a_loss_must_be_a_finite_number(api: Api) -> None:
    """Infinity, several values or an invalid gradient fail before anything is accumulated."""
    session, model = api.begin()

    def infinite(logprobs: Any) -> Any:
        return logprobs.sum() / 0.0, {}

    def several(logprobs: Any) -> Any:
        return logprobs * 1.0, {}

    def steep(logprobs: Any) -> Any:
        return torch.sqrt(logprobs * 0.0).sum(), {}

    for number, (fn, said) in enumerate(
        ((infinite, "not finite"), (several, "without dimensions"), (steep, "gradient")), 1
    ):
        loss_id = upload(api, session, number, inputs=inputs(), graph=traced(fn))
        api.fails(said, api.loss(model, number, **custom(loss_id, datum([1, 2], [2, 3]))))
    assert api.metrics(api.step(model, 4))["grad_norm:mean"] == 0


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (ONE["loss_fn_inputs"], "is missing weights"),
        ({}, "is missing target_tokens"),
        (datum([1], [700], weights=[1.0])["loss_fn_inputs"], "token id 700"),
        (
            {
                **ONE["loss_fn_inputs"],
                "weights": {"data": [1], "dtype": "float32", "shape": [1, 1]},
            },
            "takes 1 dimensions",
        ),
    ],
)
def test_a_datum_must_fit_the_loss(api: Api, inputs: dict[str, Any], said: str) -> None:
    """A datum must have the loss's inputs with the declared dimensions."""
    found = loss_of(api, {**ONE, "loss_fn_inputs": inputs})
    assert (found["category"], said in found["error"]) == ("user", True)


def test_only_what_is_listed_exists() -> None:
    """What a graph may use is of torch, math, operator or a tensor, and none of it is private."""
    places = (torch, torch.nn.functional, math, operator)
    owners = dict(zip(("torch", "torch.nn.functional", "math", "operator"), places, strict=True))
    for target in set(evaluation.FUNCTIONS.values()) - {"getattr"}:
        family, _, name = target.rpartition(".")
        function = getattr(owners[family], name)
        assert callable(function)
        qualified = torch.fx.node._get_qualified_name(function)
        assert evaluation.FUNCTIONS[qualified.replace("_operator.", "operator.")]
    assert evaluation.FUNCTIONS["torch.functional.einsum"] == "torch.einsum"
    assert all(callable(getattr(torch.Tensor, name)) for name in evaluation.METHODS)
    listed = {target.rpartition(".")[2] for target in evaluation.FUNCTIONS.values()}
    for name in {*evaluation.METHODS, *evaluation.OPERATORS, *evaluation.ATTRIBUTES, *listed}:
        assert not name.startswith("_")
        assert not name.endswith("_") or name in ("and_", "not_", "or_")


# The memory that they may take, and whose fault it is when torch refuses one


TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on the memory of a process")
@pytest.mark.soak
def test_no_loss_takes_more_memory_than_one_may() -> None:
    """Sizes that would take gigabytes are computed within the budget, or refused before that."""
    every = 9  # of the cases, which together take a quarter of an hour
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
    }
    command = [sys.executable, "-m", "support.evil_losses", str(every)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *found, count = map(json.loads, done.stdout.splitlines())
    assert found == []
    assert count > 9000 / every


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_the_square_of_one_operand_is_refused_before_it_is_made(dtype: torch.dtype) -> None:
    """A matrix of a vector's diagonal has more cells than the operand; it is refused."""
    from tinker.local.losses.memory import LossMemory

    vector = torch.ones(60_000, dtype=dtype)
    for make in (torch.diag, torch.Tensor.diag):
        with LossMemory(), pytest.raises(EngineError, match=r"it takes \d+ bytes"):
            make(vector)


def outcome(api: Api, *nodes: dict[str, Any], loss: str = "last", metric: str | None = None) -> Any:
    """Return the result of a loss, or its failure."""
    made = graph(*nodes, loss=loss)
    if metric is not None:
        metrics = {"dict": {"custom/m:sum": {"ref": metric}}}
        made["nodes"][-1]["args"] = [{"tuple": [{"ref": loss}, metrics]}]
    return loss_of(api, ONE, inputs=inputs(), graph=made)


SIDE = node("call_method", "side", "sum", REF)


ROOT = call("operator.pow", -8.0, 0.5)


N = {"ref": "n"}


@pytest.mark.parametrize(
    ("nodes", "metric"),
    [
        ([call("torch.heaviside", REF, REF)], None),
        ([call("torch.floor_divide", REF, 2.0)], None),
        ([call("torch.fmod", REF, REF), node("call_method", "m", "remainder", N, N)], None),
        ([call("torch.unique", REF)], None),
        ([node("call_method", "l", "long", REF), call("torch.bincount", {"ref": "l"})], None),
        ([call("torch.histc", REF, 4)], None),
        ([method("to", REF, "meta")], None),
        ([call("torch.zeros", 3, device="meta")], None),
        ([ROOT, node("call_function", "m", "operator.mul", REF, N)], None),
        ([SIDE, ROOT, node("call_function", "m", "operator.mul", {"ref": "side"}, N)], "m"),
    ],
)
def test_what_torch_refuses_is_the_users_fault(
    api: Api, caplog: pytest.LogCaptureFixture, nodes: list[dict[str, Any]], metric: str | None
) -> None:
    """What has no derivative, or no real value, is a user error that names datum and loss."""
    with caplog.at_level(logging.WARNING, "tinker.local"):
        found = outcome(api, *nodes, loss="side" if metric else "last", metric=metric)
    category, error = found["category"], found["error"]
    assert (category, error[:24]) == ("user", "data[0]: the loss 'nll':"), error
    assert not caplog.records


HALF = node("call_method", "half", "repeat", REF, 2**24)  # 64 MB


def steps(first: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return a value, and the exponentials of each before it."""
    made = [node("call_method", f"p{at}", "exp", {"ref": f"p{at - 1}"}) for at in range(1, count)]
    return [first, *made]


def test_values_are_freed_after_their_last_use(api: Api) -> None:
    """A loss whose values together exceed the limit, one after the other, is computed."""
    parts = steps(node("call_method", "p0", "detach", {"ref": "half"}), 12)
    assert outcome(api, SIDE, HALF, *parts, loss="side")["metrics"]["loss:sum"] < 0


def test_what_the_backward_pass_needs_counts_too(api: Api) -> None:
    """With a gradient it is refused, as its derivative needs all values; the limit is named."""
    found = outcome(api, HALF, *steps(node("call_method", "p0", "mul", {"ref": "half"}, 0.5), 30))
    assert found["category"] == "user"
    assert "a loss may take 536870912 for one datum" in found["error"]
