"""Losses that a client traced: checked when they come, evaluated node by node with torch, never executed as code.

A graph is data. Of what it names, only the functions, methods and attributes listed here exist; everything they can touch is
a tensor, a number, or a plain container of those. So a graph can compute, and nothing else.

A custom loss needs no support of the engine: with C the loss and g its gradient by the log-probabilities of the targets, the
cross entropy with weights -g has the same gradient as C. The engine computes the log-probabilities, torch computes g here,
and the engine goes backward through the cross entropy.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false
# (torch is typed in part only)

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray
from tinker_wire import models

from tinker._installation import install_command
from tinker.local.engines.protocol import Engine, EngineError, Example, LossResult
from tinker.local.loss_operations import ATTRIBUTES, DTYPES, FORMS, FUNCTIONS, METHODS, OPERATORS, SIZED

if TYPE_CHECKING:
    import torch

MAX_NODES = 10_000
MAX_INPUTS = 16
MAX_CELLS = 2**27  # of one tensor: half a gigabyte in float32
MAX_NUMBER = 2**63

_INPUT = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


@attrs.frozen(kw_only=True, eq=False)
class LossGraph:
    """A loss that was checked: what it is called, its inputs (``logprobs`` first) and its nodes."""

    name: str
    inputs: Sequence[models.CustomLossInput]
    nodes: Sequence[models.CustomLossNode]

    def run(self, engine: Engine, adapter_id: str, data: Sequence[Example], *, backward: bool) -> LossResult:
        """The loss of each datum, summed, and with ``backward`` its gradient. EngineError names the datum and the node."""
        examples = [self._example(index, example) for index, example in enumerate(data)]
        before = engine.forward_backward(adapter_id, examples, "cross_entropy", {}, backward=False)
        logprobs = [fields["logprobs"] for fields in before.outputs]
        values = [self._evaluated(index, example, logprobs[index], backward) for index, example in enumerate(data)]
        weighted = [_weighted(e, -v.gradient) for e, v in zip(examples, values) if v.gradient is not None]
        if weighted:
            engine.forward_backward(adapter_id, weighted, "cross_entropy", {}, backward=True)
        return LossResult(outputs=[{"logprobs": part} for part in logprobs], metrics=_metrics(values))

    def _example(self, index: int, example: Example) -> Example:
        """The datum as cross entropy takes it, without weights."""
        targets = example.loss_inputs.get("target_tokens")
        if targets is None:
            raise EngineError(f"datum {index}: loss_fn_inputs lacks target_tokens, which every loss needs")
        return _weighted(
            Example(tokens=example.tokens, loss_inputs={"target_tokens": targets}), np.zeros(targets.shape, np.float32)
        )

    def _evaluated(self, index: int, example: Example, logprobs: NDArray[np.float32], backward: bool) -> Value:
        torch = _torch()
        leaf = torch.from_numpy(np.array(logprobs)).requires_grad_()
        given: dict[str, Any] = {}
        for one in self.inputs:
            given[one.name] = leaf if one.name == "logprobs" else torch.from_numpy(_input(index, example, one.name))
            if given[one.name].ndim != one.rank:
                shape = list(given[one.name].shape)
                raise EngineError(
                    f"datum {index}: {one.name} has shape {shape}; the loss {self.name!r} takes {one.rank} dimensions"
                )
        try:
            with torch.enable_grad():
                loss, metrics = Evaluation(torch, given).run(self.nodes)
                gradient = _gradient(torch, loss, leaf) if backward else None
        except EngineError as error:
            raise EngineError(f"datum {index}: the loss {self.name!r}: {error}") from error
        return Value(_number(loss), {name: _number(value) for name, value in metrics.items()}, gradient)


@attrs.frozen(eq=False)
class Value:
    """The loss of one datum, its metrics, and its gradient by the log-probabilities where that is wanted."""

    loss: float
    metrics: Mapping[str, float]
    gradient: NDArray[np.float32] | None


def checked_graph(name: str, inputs: Sequence[models.CustomLossInput], graph: models.CustomLossGraph) -> LossGraph:
    """The loss, ready to run. EngineError naming the first thing in it that cannot be."""
    names = [one.name for one in inputs]
    if not names or names[0] != "logprobs" or len(set(names)) < len(names) or len(names) > MAX_INPUTS:
        raise EngineError(f"a custom loss has 1 to {MAX_INPUTS} different inputs, and the first is logprobs; got {names}")
    if bad := [one for one in inputs if not _INPUT.fullmatch(one.name) or not 0 <= one.rank <= 2]:
        raise EngineError(f"the input {bad[0].name!r} of rank {bad[0].rank} cannot be: lower case, and 0 to 2 dimensions")
    if graph.format != 1:
        raise EngineError(f"the graph has format {graph.format}; this server reads 1")
    if not 1 <= len(graph.nodes) <= MAX_NODES:
        raise EngineError(f"the graph has {len(graph.nodes)} nodes; 1 to {MAX_NODES} are possible")
    known: set[str] = set()
    for node in graph.nodes:
        try:
            _check_node(node, names, known)
        except EngineError as error:
            raise EngineError(f"node {node.name!r}: {error}") from error
        known.add(node.name)
    if [node.op for node in graph.nodes].count("output") != 1 or graph.nodes[-1].op != "output":
        raise EngineError("the graph must end with its one output node")
    return LossGraph(name=name, inputs=inputs, nodes=graph.nodes)


def _check_node(node: models.CustomLossNode, inputs: Sequence[str], known: set[str]) -> None:
    if node.name in known:
        raise EngineError("there are two nodes of this name")
    for argument in [*node.args, *node.kwargs.values()]:
        _check_argument(argument, known)
    if node.op == "placeholder":
        if node.target not in inputs:
            raise EngineError(f"{node.target!r} is no input of this loss")
    elif node.op == "call_function":
        if node.target not in FUNCTIONS:
            raise EngineError(f"the function {node.target!r} is not among those a loss may call")
    elif node.op == "call_method":
        if node.target not in METHODS:
            raise EngineError(f"the method {node.target!r} is not among those a loss may call")
    elif node.op == "output":
        _check_output(node)
    else:
        raise EngineError(f"{node.op} is not possible: a loss has no modules and no tensors of its own")
    if "out" in node.kwargs:
        raise EngineError("the argument 'out' is not possible")


def _check_output(node: models.CustomLossNode) -> None:
    try:
        ((loss, metrics),) = (_only(argument, "tuple") for argument in node.args)
        names = cast("dict[str, Any]", _only(metrics, "dict"))
        for value in (loss, *names.values()):
            _only(value, "ref")
    except (TypeError, ValueError, KeyError) as error:
        raise EngineError("a loss must return the loss and a dict of metrics, all of them nodes") from error
    for name in names:
        if not _METRIC.fullmatch(name):
            raise EngineError(f"the metric {name!r} must be called custom/<name>:sum or custom/<name>:mean")


def _only(argument: Any, kind: str) -> Any:
    """What an argument of that form holds; ValueError for another form."""
    if not isinstance(argument, dict) or list(argument) != [kind]:
        raise ValueError(kind)
    return argument[kind]


def _check_argument(argument: object, known: set[str]) -> None:
    for name in _references(argument):
        if name not in known:
            raise EngineError(f"it refers to {name!r}, which does not come before it")


def _references(argument: object) -> list[str]:
    """The nodes an argument refers to. EngineError for a form that is not known."""
    if isinstance(argument, list):
        return [name for item in cast("list[object]", argument) for name in _references(item)]
    if not isinstance(argument, dict):
        return []
    form = cast("dict[str, Any]", argument)
    kind = next(iter(form), "")
    value: Any = form.get(kind)
    if len(form) != 1 or kind not in FORMS:
        raise EngineError(f"an argument is of no known form: {sorted(form)}")
    if not isinstance(value, FORMS[kind]):
        raise EngineError(f"an argument is no {kind}: {value!r:.80}")
    if kind == "ref":
        return [str(value)]
    if kind == "dict":
        return _references(list(cast("dict[str, object]", value).values()))
    return _references(value) if kind in ("tuple", "slice") else []


class Evaluation:
    """One pass over the nodes with the inputs of one datum."""

    def __init__(self, torch: Any, inputs: Mapping[str, Any]) -> None:
        self._torch, self._inputs = torch, inputs
        self._values: dict[str, Any] = {}

    def run(self, nodes: Sequence[models.CustomLossNode]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss and the metrics. EngineError naming the node that fails."""
        for node in nodes[:-1]:
            try:
                self._values[node.name] = self._checked(self._value(node))
            except Exception as error:  # whatever torch says about these values is the user's to know
                raise EngineError(f"node {node.name!r} ({node.target}): {error}") from error
        loss, metrics = self._argument(nodes[-1].args[0])
        for name, value in {"the loss": loss, **metrics}.items():
            if not isinstance(value, self._torch.Tensor) or value.ndim != 0:
                raise EngineError(f"{name} is no tensor without dimensions")
        return loss, metrics

    def _value(self, node: models.CustomLossNode) -> Any:
        if node.op == "placeholder":
            return self._inputs[node.target]
        arguments = [self._argument(argument) for argument in node.args]
        options = {name: self._argument(argument) for name, argument in node.kwargs.items()}
        family, _, name = FUNCTIONS.get(node.target, node.target).rpartition(".")
        if name in SIZED:
            _check_size([*arguments, *options.values()])
        if node.op == "call_method":
            return getattr(self._tensor(arguments[0]), node.target)(*arguments[1:], **options)
        if family == "torch":
            return getattr(self._torch, name)(*arguments, **options)
        if family == "torch.nn.functional":
            return getattr(self._torch.nn.functional, name)(*arguments, **options)
        if family == "math":
            return getattr(math, name)(*(float(argument) for argument in arguments))
        return self._operator(name, arguments)

    def _operator(self, name: str, arguments: list[Any]) -> Any:
        if name == "getattr":
            return self._attribute(*arguments)
        if name == "getitem":
            return self._item(*arguments)
        if not all(isinstance(argument, (self._torch.Tensor, int, float)) for argument in arguments):
            raise EngineError("numbers and tensors are possible here")
        if name == "pow" and not any(isinstance(argument, self._torch.Tensor) for argument in arguments):
            return float(arguments[0]) ** float(arguments[1])
        return OPERATORS[name](*arguments)

    def _attribute(self, owner: Any, name: Any) -> Any:
        if name not in ATTRIBUTES or not isinstance(owner, (self._torch.Tensor, tuple)):
            raise EngineError(f"the attribute {name!r} is not among those a loss may read")
        return getattr(owner, name)

    def _item(self, owner: Any, place: Any) -> Any:
        if not isinstance(owner, (self._torch.Tensor, tuple, list)):
            raise EngineError("only tensors, tuples and lists have items")
        return owner[place]

    def _tensor(self, value: Any) -> Any:
        if not isinstance(value, self._torch.Tensor):
            raise EngineError("methods of tensors only")
        return value

    def _checked(self, value: Any) -> Any:
        """A value that fits into memory."""
        if isinstance(value, self._torch.Tensor) and value.numel() > MAX_CELLS:
            raise EngineError(f"a tensor of {value.numel()} values; {MAX_CELLS} are possible")
        if isinstance(value, int) and abs(value) >= MAX_NUMBER:
            raise EngineError("a number beyond 64 bits")
        return value

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, list):
            return [self._argument(item) for item in argument]
        if not isinstance(argument, dict):
            return argument
        ((kind, value),) = cast("dict[str, Any]", argument).items()
        if kind == "ref":
            return self._values[value]
        if kind == "tuple":
            return tuple(self._argument(item) for item in value)
        if kind == "dict":
            return {name: self._argument(item) for name, item in value.items()}
        if kind == "slice":
            return slice(*(self._argument(item) for item in value))
        return self._constant(kind, value)

    def _constant(self, kind: str, value: Any) -> Any:
        if kind == "ellipsis":
            return ...
        if kind == "float":
            return float(value)
        if kind == "dtype" and value in DTYPES:
            return getattr(self._torch, value)
        if kind == "device":
            return self._torch.device("cpu")  # where every input is
        if kind == "layout" and value == "strided":
            return self._torch.strided
        if kind == "memory_format" and value in ("contiguous_format", "preserve_format"):
            return getattr(self._torch, value)
        raise EngineError(f"{kind} {value!r} is not possible")


def _check_size(arguments: Sequence[Any]) -> None:
    """EngineError when whole numbers among the arguments, multiplied, are more than a tensor may have values."""
    sizes = [n for a in arguments for n in _leaves(a) if isinstance(n, int) and not isinstance(n, bool)]
    if math.prod(max(1, abs(size)) for size in sizes) > MAX_CELLS:
        raise EngineError(f"sizes {sizes} make more than {MAX_CELLS} values")


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in cast("Sequence[Any]", value) for leaf in _leaves(item)]
    return [value]


def _number(value: Any) -> float:
    """A tensor's one value, or a number as it is."""
    return float(value.detach() if hasattr(value, "detach") else value)


def _gradient(torch: Any, loss: Any, leaf: Any) -> NDArray[np.float32]:
    if not torch.isfinite(loss):
        raise EngineError("the loss is not finite")
    if not loss.requires_grad:
        raise EngineError("the loss does not depend on logprobs")
    gradient = torch.autograd.grad(loss, leaf)[0]
    if not torch.isfinite(gradient).all():
        raise EngineError("the gradient of the loss is not finite")
    array: NDArray[np.float32] = gradient.numpy()
    return array


def _weighted(example: Example, weights: NDArray[np.float32]) -> Example:
    return attrs.evolve(example, loss_inputs={**example.loss_inputs, "weights": weights})


def _input(index: int, example: Example, name: str) -> NDArray[Any]:
    found = example.loss_inputs.get(name)
    if found is None:
        raise EngineError(f"datum {index}: loss_fn_inputs lacks {name}, which the loss takes")
    return np.array(found)


def _metrics(values: Sequence[Value]) -> dict[str, float]:
    """``loss:sum``, and the loss's own metrics, reduced over the datums as their names say."""
    found = {"loss:sum": sum(value.loss for value in values)}
    for name in {name: None for value in values for name in value.metrics}:
        total = sum(value.metrics.get(name, 0.0) for value in values)
        found[name] = total / len(values) if name.endswith(":mean") else total
    return found


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise EngineError(f"custom losses are computed with torch; on the server: {install_command('torch')}") from None
    return torch
