"""Checks of a traced loss when it arrives."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false
# (torch is typed in part only)

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from tinker_wire import models

from tinker.local.engines.protocol import EngineError
from tinker.local.losses.evaluation import ARGUMENT_TYPES, FUNCTIONS, METHODS
from tinker.local.losses.graph import LossGraph

MAX_NODES = 10_000
MAX_INPUTS = 16
_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC_NAME = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


def check_graph(name: str, inputs: Sequence[models.CustomLossInput], graph: models.CustomLossGraph) -> LossGraph:
    """Return the loss, ready to run. Raises EngineError for the first thing in it that is not allowed."""
    names = [one.name for one in inputs]
    if not names or names[0] != "logprobs" or len(set(names)) < len(names) or len(names) > MAX_INPUTS:
        raise EngineError(
            f"a custom loss must have 1 to {MAX_INPUTS} different inputs, the first of them logprobs; got {names}"
        )
    if bad := [one for one in inputs if not _INPUT_NAME.fullmatch(one.name) or not 0 <= one.rank <= 2]:
        raise EngineError(
            f"the input {bad[0].name!r} of rank {bad[0].rank} is not valid: the name must be lower case, the rank 0 to 2"
        )
    if graph.format != 1:
        raise EngineError(f"the graph has format {graph.format}; this server reads 1")
    if not 1 <= len(graph.nodes) <= MAX_NODES:
        raise EngineError(f"the graph has {len(graph.nodes)} nodes; it must have 1 to {MAX_NODES}")
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
            raise EngineError(f"{node.target!r} is not an input of this loss")
    elif node.op == "call_function":
        if node.target not in FUNCTIONS:
            raise EngineError(f"the function {node.target!r} is not among those a loss may call")
    elif node.op == "call_method":
        if node.target not in METHODS:
            raise EngineError(f"the method {node.target!r} is not among those a loss may call")
    elif node.op == "output":
        _check_output(node)
    else:
        raise EngineError(f"{node.op} is not allowed: a loss has no modules and no tensors of its own")
    if "out" in node.kwargs:
        raise EngineError("the argument 'out' is not allowed")


def _check_output(node: models.CustomLossNode) -> None:
    try:
        ((loss, metrics),) = (_unwrap(argument, "tuple") for argument in node.args)
        names = cast("dict[str, Any]", _unwrap(metrics, "dict"))
        for value in (loss, *names.values()):
            _unwrap(value, "ref")
    except (TypeError, ValueError, KeyError) as error:
        raise EngineError("a loss must return the loss and a dict of metrics, and all of them must be nodes") from error
    for name in names:
        if not _METRIC_NAME.fullmatch(name):
            raise EngineError(f"the metric {name!r} must be called custom/<name>:sum or custom/<name>:mean")


def _unwrap(argument: Any, kind: str) -> Any:
    """Return the value of an argument of that form; ValueError for another form."""
    if not isinstance(argument, dict) or list(argument) != [kind]:
        raise ValueError(kind)
    return argument[kind]


def _check_argument(argument: object, known: set[str]) -> None:
    for name in _find_references(argument):
        if name not in known:
            raise EngineError(f"it refers to {name!r}, which does not come before it")


def _find_references(argument: object) -> list[str]:
    """Return the nodes that an argument refers to. Raises EngineError for an unknown form."""
    if isinstance(argument, list):
        return [name for item in cast("list[object]", argument) for name in _find_references(item)]
    if not isinstance(argument, dict):
        return []
    form = cast("dict[str, Any]", argument)
    kind = next(iter(form), "")
    value: Any = form.get(kind)
    if len(form) != 1 or kind not in ARGUMENT_TYPES:
        raise EngineError(f"an argument has an unknown form: {sorted(form)}")
    if not isinstance(value, ARGUMENT_TYPES[kind]):
        raise EngineError(f"an argument is not a valid {kind}: {value!r:.80}")
    if kind == "ref":
        return [str(value)]
    if kind == "dict":
        return _find_references(list(cast("dict[str, object]", value).values()))
    return _find_references(value) if kind in ("tuple", "slice") else []
