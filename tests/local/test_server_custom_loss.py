# ruff: noqa: E402 (torch is optional, so its absence skips before the imports)
"""Custom losses traced by clients: their values, their exact gradients, and what
they may not do.
"""

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
from support.api import Api, custom_loss_body, datum, loss_body, node
from support.tolerances import assert_near, near

from tinker.local.engines.protocol import EngineError, LossResult, TrainingExample
from tinker.local.engines.toy import ToyEngine

TOKENS = [104, 101, 300, 7]
TARGETS = [101, 300, 7, 104]


def traced(fn: Callable[..., Any]) -> list[dict[str, Any]]:
    """Return a function as a client uploads it: its nodes, as torch's tracer finds them."""
    nodes: list[dict[str, Any]] = []
    for one in torch.fx.symbolic_trace(fn).graph.nodes:
        target = one.target
        if one.op == "call_function":
            target = (
                "getattr"
                if target is builtins.getattr
                else torch.fx.node._get_qualified_name(target)
            )
            target = target.replace("_operator.", "operator.")
        kwargs = {name: encoded(value) for name, value in one.kwargs.items()}
        nodes.append(
            {**node(one.op, one.name, str(target), *map(encoded, one.args)), "kwargs": kwargs}
        )
    return nodes


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
    return api.result(api.ok("create_custom_loss", custom_loss_body(session, number, **fields)))[
        "loss_id"
    ]


def inputs(**ranks: int) -> list[dict[str, Any]]:
    return [{"name": name, "rank": rank} for name, rank in {"logprobs": 1, **ranks}.items()]


def custom(loss_id: str, *data: Any) -> dict[str, Any]:
    return {"loss_fn": "custom", "loss_fn_config": {"loss_id": loss_id}, "data": list(data)}


def loss_of(api: Api, session: str, fn: Callable[..., Any], *data: Any, **ranks: int) -> Any:
    """Return the result of a traced function on some datums, with a fresh model."""
    loss_id = upload(
        api, session, name=fn.__name__, inputs=inputs(**ranks), graph={"nodes": traced(fn)}
    )
    return api.result(api.loss(api.model(session), 1, **custom(loss_id, *data)))


# What custom losses compute


@pytest.mark.numeric
def test_a_traced_cross_entropy_is_the_built_in_one(api: Api) -> None:
    """A traced cross entropy gives the built-in's loss and log-probabilities and, after a step, the
    same weights.
    """
    session = api.session()
    one, other = api.model(session), api.model(session, 1)
    data = [datum(TOKENS, TARGETS, weights=[0.0, 1.0, 0.5, 2.0]), datum([1], [2], weights=[1.0])]
    built_in = api.result(api.loss(one, 1, data=data))
    traced_one = api.result(api.loss(other, 1, **custom(upload(api, session), *data)))
    assert traced_one["metrics"]["loss:sum"] == near(built_in["metrics"]["loss:sum"], 5)
    assert traced_one["metrics"]["custom/nll:sum"] == traced_one["metrics"]["loss:sum"]
    assert traced_one["loss_fn_outputs"] == built_in["loss_fn_outputs"]
    norms = [
        api.metrics(api.step(model, 2, learning_rate=1.0, eps=1.0))["grad_norm:mean"]
        for model in (one, other)
    ]
    assert norms[0] == near(norms[1], 5)
    after = [api.metrics(api.loss(model, 3, data=data))["loss:sum"] for model in (one, other)]
    assert after[0] == near(after[1], 5)


class NotingEngine(ToyEngine):
    """An engine that keeps the gradients of the last backward pass."""

    weights: list[list[float]]

    def forward_backward(
        self, adapter_id: str, data: Any, loss_fn: str, config: Any, *, backward: bool
    ) -> LossResult:
        if backward:
            examples: list[TrainingExample] = list(data)
            self.weights = [
                np.asarray(example.loss_inputs["weights"]).tolist() for example in examples
            ]
        return super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)


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
    """A graph has the value and gradient that torch computes for the function itself, summed over
    the datums.
    """
    engine = NotingEngine(vocabulary=512)
    api = make_api(engine)
    session = api.session()
    given = {
        "policy": {"advantages": [1.0, -1.0, 2.0, 0.5], "old": [-2.0, -3.0, -1.0, -9.0]},
        "indexing": {"scale": [1.0, 2.0, 3.0]},
        "containers": {},
    }[fn.__name__]
    data = [datum(TOKENS, TARGETS, **given)] * 2
    ranks = dict.fromkeys(given, 1) or {"target_tokens": 1}
    result = loss_of(api, session, fn, *data, **ranks)
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
    session = api.session()

    def spread(logprobs: Any) -> Any:
        return logprobs.std(dim=-1).sum(), {}

    table = {"data": [1, 2, 3, 4], "dtype": "int64", "shape": [2, 2]}
    one = {**datum([5, 6], [0, 0]), "loss_fn_inputs": {"target_tokens": table}}
    result = loss_of(api, session, spread, one, logprobs=2)
    logprobs = torch.tensor(result["loss_fn_outputs"][0]["logprobs"]["data"]).reshape(2, 2)
    assert result["metrics"]["loss:sum"] == near(
        float(logprobs.std(dim=-1).sum()), 4, float(logprobs.abs().sum())
    )


def test_forward_alone_leaves_no_gradient(api: Api) -> None:
    """A forward pass gives the loss and its metrics without a gradient; losses without a gradient
    are allowed there.
    """
    session = api.session()

    def constant(logprobs: Any) -> Any:
        return torch.zeros_like(logprobs).sum(), {}

    loss_id = upload(api, session, inputs=inputs(), graph={"nodes": traced(constant)})
    model = api.model(session)
    body = {"model_id": model, "seq_id": 1, "forward_input": custom(loss_id, datum([1], [2]))}
    assert api.metrics(api.ok("forward", body)) == {"loss:sum": 0.0}
    assert api.metrics(api.step(model, 2))["grad_norm:mean"] == 0
    assert (
        "does not depend on logprobs"
        in api.failure(api.loss(model, 3, **custom(loss_id, datum([1], [2]))))[1]
    )


def test_the_torch_engine_computes_them_too(tmp_path: Any) -> None:
    """The torch engine evaluates the same graph, and steps lower its loss."""
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tinker.local.engines import PACKAGED_MODEL
    from tinker.local.engines.torch import TorchEngine
    from tinker.local.settings import Settings
    from tinker.local.state import State

    state = State(lambda: TorchEngine(PACKAGED_MODEL, device="cpu"), Settings(data_dir=tmp_path))
    api = Api(state)
    session = api.session()
    model = api.model(session, base_model=PACKAGED_MODEL)
    loss_id = upload(api, session)
    losses: list[float] = []
    for number in range(1, 9, 2):
        data = datum([104, 101], [101, 108], weights=[1.0, 1.0])
        losses.append(api.metrics(api.loss(model, number, **custom(loss_id, data)))["loss:sum"])
        api.result(api.step(model, number + 1, learning_rate=0.01))
    api.close()
    assert losses == sorted(losses, reverse=True)


# Identity


def test_the_same_loss_is_made_once(api: Api) -> None:
    """The same number and body give the same future; another body under the number is 409; sessions
    are separate.
    """
    session, other = api.session(), api.session()
    body = custom_loss_body(session)
    first = api.ok("create_custom_loss", body)
    assert api.ok("create_custom_loss", body) == first
    assert api.refused("create_custom_loss", {**body, "name": "else"})[0] == 409
    loss_id = api.result(first)["loss_id"]
    assert upload(api, session, 1) != loss_id
    category, error = api.failure(api.loss(api.model(other), 1, **custom(loss_id, datum([1], [2]))))
    assert (category, "no custom loss" in error) == ("user", True)
    assert api.refused("create_custom_loss", custom_loss_body("nobody"))[0] == 404


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


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (graph(call("os.system", "true")), "os.system"),
        (graph(call("builtins.eval", "1")), "builtins.eval"),
        (graph(call("torch.load", "file")), "torch.load"),
        (graph(call("torch.save", REF, "file")), "torch.save"),
        (graph(call("torch.ops.aten.add", REF, REF)), "torch.ops"),
        (graph(call("torch.hub.load", "x")), "torch.hub"),
        (graph(call("torch._C._nn.linear", REF)), "torch._C"),
        (graph(call("torch.functional.stft", REF)), "stft"),
        (graph(call("operator.attrgetter", "x")), "attrgetter"),
        (graph(call("operator.setitem", REF, 0, 1.0)), "setitem"),
        (graph(call("operator.lshift", 1, 10**6)), "lshift"),
        (graph(node("call_method", "n", "numpy", REF)), "'numpy'"),
        (graph(node("call_method", "n", "item", REF)), "'item'"),
        (graph(node("call_method", "n", "backward", REF)), "'backward'"),
        (graph(node("call_method", "n", "__class__", REF)), "'__class__'"),
        (graph(node("call_method", "n", "add_", REF, 1.0)), "'add_'"),
        (graph(node("call_method", "n", "register_hook", REF)), "'register_hook'"),
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
        ({"nodes": [node("output", "o", "output", {"tuple": [1.0, {"dict": {}}]})]}, "must return"),
        ({**graph(), "format": 2}, "format 2"),
    ],
)
def test_a_graph_that_may_not_be_is_refused(api: Api, nodes: dict[str, Any], said: str) -> None:
    """Only listed functions, methods and forms of arguments are accepted; the error names the
    others.
    """
    status, detail = api.refused(
        "create_custom_loss", custom_loss_body(api.session(), inputs=inputs(), graph=nodes)
    )
    assert status == 400
    assert said in detail


def test_a_metric_has_a_name_that_says_how_it_combines(api: Api) -> None:
    """A metric must be custom/<name>:sum or custom/<name>:mean, so that it cannot pass for one of
    the server's.
    """
    nodes = graph()["nodes"]
    for name in ("loss:sum", "custom/x", "custom/X:sum", "custom/x:max"):
        nodes[-1] = node(
            "output",
            "output",
            "output",
            {"tuple": [{"ref": "last"}, {"dict": {name: {"ref": "last"}}}]},
        )
        body = custom_loss_body(api.session(), inputs=inputs(), graph={"nodes": nodes})
        assert name in api.refused("create_custom_loss", body)[1]


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
    assert (
        api.refused(
            "create_custom_loss", custom_loss_body(api.session(), inputs=wrong, graph=graph())
        )[0]
        == 400
    )


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
    """A graph that cannot be evaluated is a user error with datum, node and reason; model and
    server continue.
    """
    session = api.session()
    loss_id = upload(api, session, inputs=inputs(), graph=graph(made))
    model = api.model(session)
    category, error = api.failure(api.loss(model, 1, **custom(loss_id, datum([1], [2]))))
    assert category == "user"
    assert error.startswith("data[0]: the loss 'nll': node 'n'")
    assert said in error
    assert "loss:sum" in api.metrics(api.loss(model, 2))


def test_a_loss_must_be_a_finite_number(api: Api) -> None:
    """Infinity, a tensor of several values or an invalid gradient fails before anything is
    accumulated.
    """
    session = api.session()

    def infinite(logprobs: Any) -> Any:
        return logprobs.sum() / 0.0, {}

    def several(logprobs: Any) -> Any:
        return logprobs * 1.0, {}

    def steep(logprobs: Any) -> Any:
        return torch.sqrt(logprobs * 0.0).sum(), {}

    model = api.model(session)
    for number, (fn, said) in enumerate(
        ((infinite, "not finite"), (several, "without dimensions"), (steep, "gradient")), 1
    ):
        loss_id = upload(api, session, number, inputs=inputs(), graph={"nodes": traced(fn)})
        category, error = api.failure(
            api.loss(model, number, **custom(loss_id, datum([1, 2], [2, 3])))
        )
        assert (category, said in error) == ("user", True)
    assert api.metrics(api.step(model, 4))["grad_norm:mean"] == 0


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (datum([1], [2]), "is missing weights"),
        ({**datum([1], [2]), "loss_fn_inputs": {}}, "is missing target_tokens"),
        (datum([1], [700], weights=[1.0]), "token id 700"),
        (
            {
                **datum([1], [2]),
                "loss_fn_inputs": {
                    **datum([1], [2])["loss_fn_inputs"],
                    "weights": {"data": [1], "dtype": "float32", "shape": [1, 1]},
                },
            },
            "takes 1 dimensions",
        ),
    ],
)
def test_a_datum_must_fit_the_loss(api: Api, one: dict[str, Any], said: str) -> None:
    """A datum must have the loss's inputs with the declared dimensions."""
    session = api.session()
    loss_id = upload(api, session)
    model = api.model(session)
    category, error = api.failure(
        api.ok("forward_backward", loss_body(model, 1, **custom(loss_id, one)))
    )
    assert category == "user"
    assert said in error


def test_only_what_is_listed_exists() -> None:
    """Every name that a graph may use is a function of torch, math or operator, or a method of
    tensors; none is private.
    """
    from tinker.local.losses.evaluation import ATTRIBUTES, FUNCTIONS, METHODS, OPERATORS

    owners = {
        "torch": torch,
        "torch.nn.functional": torch.nn.functional,
        "math": math,
        "operator": operator,
    }
    for target in set(FUNCTIONS.values()) - {"getattr"}:
        family, _, name = target.rpartition(".")
        function = getattr(owners[family], name)
        assert callable(function)
        assert FUNCTIONS[
            torch.fx.node._get_qualified_name(function).replace("_operator.", "operator.")
        ]
    assert FUNCTIONS["torch.functional.einsum"] == "torch.einsum"
    assert all(callable(getattr(torch.Tensor, name)) for name in METHODS)
    for name in {
        *METHODS,
        *OPERATORS,
        *ATTRIBUTES,
        *(target.rpartition(".")[2] for target in FUNCTIONS.values()),
    }:
        assert not name.startswith("_")
        assert not name.endswith("_") or name in ("and_", "not_", "or_")


# The memory that they may take, and whose fault it is when torch refuses one


TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on the memory of a process")
@pytest.mark.soak
def test_no_loss_takes_more_memory_than_one_may() -> None:
    """Functions and methods with sizes that would take gigabytes are computed in their budget, or
    refused before that.
    """
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
    """A matrix with a vector as its diagonal has more cells than the operand and the numbers given
    multiply to.
    """
    from tinker.local.losses.memory import LossMemory

    vector = torch.ones(60_000, dtype=dtype)
    for make in (torch.diag, torch.Tensor.diag):
        with LossMemory(), pytest.raises(EngineError, match=r"it takes \d+ bytes"):
            make(vector)


def outcome(
    api: Api, *nodes: dict[str, Any], loss: str = "last", metric: str | None = None, data: int = 1
) -> Any:
    """Return the result of a loss, or its failure."""
    made = graph(*nodes, loss=loss)
    if metric is not None:
        made["nodes"][-1]["args"] = [
            {"tuple": [{"ref": loss}, {"dict": {"custom/m:sum": {"ref": metric}}}]}
        ]
    session = api.session()
    loss_id = upload(api, session, inputs=inputs(), graph=made)
    return api.result(api.loss(api.model(session), 1, **custom(loss_id, *[datum([1], [2])] * data)))


SIDE = node("call_method", "side", "sum", REF)


@pytest.mark.parametrize(
    ("nodes", "metric"),
    [
        ([call("torch.heaviside", REF, REF)], None),
        ([call("torch.floor_divide", REF, 2.0)], None),
        (
            [
                call("torch.fmod", REF, REF),
                node("call_method", "m", "remainder", {"ref": "n"}, {"ref": "n"}),
            ],
            None,
        ),
        ([call("torch.unique", REF)], None),
        ([node("call_method", "l", "long", REF), call("torch.bincount", {"ref": "l"})], None),
        ([call("torch.histc", REF, 4)], None),
        ([node("call_method", "n", "to", REF, "meta")], None),
        ([call("torch.zeros", 3, device="meta")], None),
        (
            [
                call("operator.pow", -8.0, 0.5),
                node("call_function", "m", "operator.mul", REF, {"ref": "n"}),
            ],
            None,
        ),
        (
            [
                SIDE,
                call("operator.pow", -8.0, 0.5),
                node("call_function", "m", "operator.mul", {"ref": "side"}, {"ref": "n"}),
            ],
            "m",
        ),
    ],
)
def test_what_torch_refuses_is_the_users_fault(
    api: Api, caplog: pytest.LogCaptureFixture, nodes: list[dict[str, Any]], metric: str | None
) -> None:
    """What has no derivative, or no real value, is a user error that names datum and loss, and no
    error of the server.
    """
    loss = "side" if metric else "last"
    with caplog.at_level(logging.WARNING, "tinker.local"):
        found = outcome(api, *nodes, loss=loss, metric=metric)
    category, error = found["category"], found["error"]
    assert (category, error[:24]) == ("user", "data[0]: the loss 'nll':"), error
    assert not caplog.records


HALF = node("call_method", "half", "repeat", REF, 2**24)  # 64 MB


def test_values_are_freed_after_their_last_use(api: Api) -> None:
    """A loss whose values together exceed the limit, one after the other, is computed."""
    parts = [node("call_method", "p0", "detach", {"ref": "half"})]
    parts += [
        node("call_method", f"p{index}", "exp", {"ref": f"p{index - 1}"}) for index in range(1, 12)
    ]
    assert outcome(api, SIDE, HALF, *parts, loss="side")["metrics"]["loss:sum"] < 0


def test_what_the_backward_pass_needs_counts_too(api: Api) -> None:
    """The same loss with a gradient is refused, as its derivative needs all the values; the message
    names the limit.
    """
    parts = [node("call_method", "p0", "mul", {"ref": "half"}, 0.5)]
    parts += [
        node("call_method", f"p{index}", "exp", {"ref": f"p{index - 1}"}) for index in range(1, 30)
    ]
    found = outcome(api, HALF, *parts)
    assert found["category"] == "user"
    assert "a loss may take 536870912 for one datum" in found["error"]
