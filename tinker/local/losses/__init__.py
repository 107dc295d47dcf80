"""Losses that a client traced: checked when they come, evaluated node by node with torch, never
executed as code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray
from tinker_wire import models

from tinker._basics.installation import install_command
from tinker.local.engines.protocol import Engine, EngineError, LossResult, TrainingExample, explain
from tinker.local.losses.evaluation import FUNCTIONS, METHODS, Evaluation, node_references

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false
# (torch is typed in part only)


@attrs.frozen(kw_only=True, eq=False)
class LossGraph:
    """A checked loss: its name, inputs (``logprobs`` first) and nodes."""

    name: str
    inputs: Sequence[models.CustomLossInput]
    nodes: Sequence[models.CustomLossNode]

    def run(
        self, engine: Engine, adapter_id: str, data: Sequence[TrainingExample], *, backward: bool
    ) -> LossResult:
        """Sum the loss of each datum, and with ``backward`` its gradient. EngineError names the
        datum and the node.
        """
        examples = [self._without_weights(index, example) for index, example in enumerate(data)]
        before = engine.forward_backward(adapter_id, examples, "cross_entropy", {}, backward=False)
        logprobs = [fields["logprobs"] for fields in before.outputs]
        values = [
            self._evaluate(index, example, logprobs[index], backward)
            for index, example in enumerate(data)
        ]
        weighted = [
            _add_weights(e, -v.gradient) for e, v in zip(examples, values) if v.gradient is not None
        ]
        if weighted:
            engine.forward_backward(adapter_id, weighted, "cross_entropy", {}, backward=True)
        return LossResult(
            outputs=[{"logprobs": part} for part in logprobs], metrics=_metrics(values)
        )

    def _without_weights(self, index: int, example: TrainingExample) -> TrainingExample:
        """Return the datum as cross entropy takes it, without weights."""
        targets = example.loss_inputs.get("target_tokens")
        if targets is None:
            raise EngineError(
                f"data[{index}]: loss_fn_inputs is missing target_tokens, which every loss needs"
            )
        return _add_weights(
            attrs.evolve(example, loss_inputs={"target_tokens": targets}),
            np.zeros(targets.shape, np.float32),
        )

    def _evaluate(
        self, index: int, example: TrainingExample, logprobs: NDArray[np.float32], backward: bool
    ) -> DatumLoss:
        torch, memory = _import_torch()
        leaf = torch.from_numpy(np.array(logprobs)).requires_grad_()
        given: dict[str, Any] = {}
        for one in self.inputs:
            array = example.loss_inputs.get(one.name)
            if array is None and one.name != "logprobs":
                raise EngineError(
                    f"data[{index}]: loss_fn_inputs is missing {one.name}, which the loss takes"
                )
            given[one.name] = leaf if one.name == "logprobs" else torch.from_numpy(np.array(array))
            if given[one.name].ndim != one.rank:
                raise EngineError(
                    f"data[{index}]: {one.name} has shape {list(given[one.name].shape)}; "
                    f"the loss {self.name!r} takes {one.rank} dimensions"
                )
        # whatever torch says about these values is the user's to know
        where = f"data[{index}]: the loss {self.name!r}"
        with explain(where, Exception), torch.enable_grad(), memory:
            loss, metrics = Evaluation(torch, given).run(self.nodes)
            gradient = _gradient(torch, loss, leaf) if backward else None
            found = {name: _to_float(value) for name, value in metrics.items()}
            return DatumLoss(_to_float(loss), found, gradient)


@attrs.frozen(eq=False)
class DatumLoss:
    """The loss of one datum, its metrics, and its gradient by the log-probabilities where that is
    wanted.
    """

    loss: float
    metrics: Mapping[str, float]
    gradient: NDArray[np.float32] | None


def _to_float(value: Any) -> float:
    """Return a tensor's one value, or a number as it is."""
    return float(value.detach() if hasattr(value, "detach") else value)


def _gradient(torch: Any, loss: Any, leaf: Any) -> NDArray[np.float32]:
    if not torch.isfinite(loss):
        raise EngineError("the loss is not finite")
    if not loss.requires_grad:
        raise EngineError("the loss does not depend on logprobs")
    gradient = torch.autograd.grad(loss, leaf)[0]
    if not torch.isfinite(gradient).all():
        raise EngineError("the gradient of the loss is not finite")
    return cast("NDArray[np.float32]", gradient.numpy())


def _add_weights(example: TrainingExample, weights: NDArray[np.float32]) -> TrainingExample:
    return attrs.evolve(example, loss_inputs={**example.loss_inputs, "weights": weights})


def _metrics(values: Sequence[DatumLoss]) -> dict[str, float]:
    """Return ``loss:sum``, and the loss's own metrics, reduced over the datums as
    their names say.
    """
    found = {"loss:sum": sum(value.loss for value in values)}
    for name in {name: None for value in values for name in value.metrics}:
        total = sum(value.metrics.get(name, 0.0) for value in values)
        found[name] = total / len(values) if name.endswith(":mean") else total
    return found


def _import_torch() -> tuple[Any, Any]:
    """Return torch, and what limits the memory of one evaluation."""
    try:
        import torch

        from tinker.local.losses.memory import LossMemory
    except ImportError:
        raise EngineError(
            f"custom losses are computed with torch; on the server: {install_command('torch')}"
        ) from None
    return torch, LossMemory()


MAX_NODES = 10_000
MAX_INPUTS = 16
_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC_NAME = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


def check_graph(
    name: str, inputs: Sequence[models.CustomLossInput], graph: models.CustomLossGraph
) -> LossGraph:
    """Return the loss, ready to run. Raises EngineError for the first thing in it that is not
    allowed.
    """
    names = [one.name for one in inputs]
    if (
        not names
        or names[0] != "logprobs"
        or len(set(names)) < len(names)
        or len(names) > MAX_INPUTS
    ):
        raise EngineError(
            f"a custom loss must have 1 to {MAX_INPUTS} different inputs, the first of them "
            f"logprobs; got {names}"
        )
    if bad := [
        one for one in inputs if not _INPUT_NAME.fullmatch(one.name) or not 0 <= one.rank <= 2
    ]:
        raise EngineError(
            f"the input {bad[0].name!r} of rank {bad[0].rank} is not valid: the name must be lower "
            "case, the rank 0 to 2"
        )
    if graph.format != 1:
        raise EngineError(f"the graph has format {graph.format}; this server reads 1")
    if not 1 <= len(graph.nodes) <= MAX_NODES:
        raise EngineError(f"the graph has {len(graph.nodes)} nodes; it must have 1 to {MAX_NODES}")
    known: set[str] = set()
    for node in graph.nodes:
        with explain(f"node {node.name!r}"):
            _check_node(node, names, known)
        known.add(node.name)
    if [node.op for node in graph.nodes].count("output") != 1 or graph.nodes[-1].op != "output":
        raise EngineError("the graph must end with its one output node")
    return LossGraph(name=name, inputs=inputs, nodes=graph.nodes)


def _check_node(node: models.CustomLossNode, inputs: Sequence[str], known: set[str]) -> None:
    if node.name in known:
        raise EngineError("there are two nodes of this name")
    for name in node_references(node):
        if name not in known:
            raise EngineError(f"it refers to {name!r}, which does not come before it")
    if node.op == "placeholder":
        if node.target not in inputs:
            raise EngineError(f"{node.target!r} is not an input of this loss")
    elif node.op in ("call_function", "call_method"):
        if node.target not in (FUNCTIONS if node.op == "call_function" else METHODS):
            what = node.op.removeprefix("call_")
            raise EngineError(f"the {what} {node.target!r} is not among those a loss may call")
    elif node.op == "output":
        _check_output(node)
    else:
        raise EngineError(
            f"{node.op} is not allowed: a loss has no modules and no tensors of its own"
        )
    if "out" in node.kwargs:
        raise EngineError("the argument 'out' is not allowed")


def _check_output(node: models.CustomLossNode) -> None:
    try:
        ((loss, metrics),) = (_unwrap(argument, "tuple") for argument in node.args)
        names = cast("dict[str, Any]", _unwrap(metrics, "dict"))
        for value in (loss, *names.values()):
            _unwrap(value, "ref")
    except (TypeError, ValueError, KeyError) as error:
        raise EngineError(
            "a loss must return the loss and a dict of metrics, and all of them must be nodes"
        ) from error
    for name in names:
        if not _METRIC_NAME.fullmatch(name):
            raise EngineError(
                f"the metric {name!r} must be called custom/<name>:sum or custom/<name>:mean"
            )


def _unwrap(argument: Any, kind: str) -> Any:
    """Return the value of an argument of that form; ValueError for another form."""
    if not isinstance(argument, dict) or list(argument) != [kind]:
        raise ValueError(kind)
    return argument[kind]
