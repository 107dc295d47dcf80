"""A loss function as a graph of tensor operations: traced with torch.fx, checked, and written as it
is uploaded.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch.fx is typed in part only)

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
from tinker_wire import limits
from tinker_wire.models import CustomLossGraph, CustomLossInput, CustomLossNode

from tinker._installation import install_command

if TYPE_CHECKING:
    import torch
    import torch.fx

    from tinker.custom_loss import PerDatumLossFn

    Node: TypeAlias = torch.fx.Node

LOGPROBS = "logprobs"
MAX_INPUTS = limits.CREATE_CUSTOM_LOSS_REQUEST_INPUTS_MAX_ITEMS
RANKS = range(limits.CUSTOM_LOSS_INPUT_RANK_MINIMUM, limits.CUSTOM_LOSS_INPUT_RANK_MAXIMUM + 1)
_INPUT_NAME = re.compile(limits.CUSTOM_LOSS_INPUT_NAME_PATTERN)
_METRIC_NAME = re.compile(limits.CUSTOM_LOSS_GRAPH_METRIC_NAME_PATTERN)
# These leave the graph: they need values, which a trace has none of, or run a backward pass of
# their own.
_FORBIDDEN_METHODS = frozenset(
    {"backward", "item", "numpy", "tolist", "requires_grad_", "register_hook", "retain_grad"}
)


class TracedLoss(msgspec.Struct, frozen=True):
    """A loss that can be run here, as ``module``, and uploaded, as ``graph``."""

    name: str
    inputs: tuple[CustomLossInput, ...]
    module: torch.fx.GraphModule
    graph: CustomLossGraph


def trace(fn: PerDatumLossFn, input_ranks: Mapping[str, int]) -> TracedLoss:
    """Trace a loss per datum. ValueError naming the part that cannot be traced or uploaded,
    ImportError without torch.
    """
    try:
        from torch import fx
    except ImportError:
        raise ImportError(
            f"PyTorch is not installed; create_custom_loss needs it: {install_command('torch')}"
        ) from None
    inputs = _inputs(fn, input_ranks)
    name = getattr(fn, "__name__", type(fn).__name__)
    try:
        graph = fx.Tracer().trace(cast("Callable[..., Any]", fn))
    except Exception as error:
        raise _refusal(f"{name} cannot be traced: {error}") from error
    for node in graph.nodes:
        node.type = None  # annotations may be text, which a module cannot be pickled with
    nodes = [_wire_node(node) for node in graph.nodes]
    module = fx.GraphModule({}, graph)
    return TracedLoss(name, inputs, module, CustomLossGraph(nodes=nodes))


def _refusal(message: str) -> ValueError:
    return ValueError(f"create_custom_loss: {message}")


def _inputs(fn: PerDatumLossFn, input_ranks: Mapping[str, int]) -> tuple[CustomLossInput, ...]:
    parameters = list(inspect.signature(fn).parameters.values())
    names = [parameter.name for parameter in parameters]
    if not names or names[0] != LOGPROBS:
        raise _refusal(
            f"the first parameter must be named {LOGPROBS}, got "
            f"{', '.join(names) or 'no parameters'}"
        )
    if len(names) > MAX_INPUTS:
        raise _refusal(f"a loss can have at most {MAX_INPUTS} parameters, got {len(names)}")
    for parameter in parameters:
        plain = (
            parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            and parameter.default is parameter.empty
        )
        if not plain or not _INPUT_NAME.fullmatch(parameter.name):
            raise _refusal(
                f"the parameter {parameter} must have a lower-case name and no default, * or /"
            )
    if set(input_ranks) != set(names):
        raise _refusal(
            f"input_ranks must name the parameters {', '.join(names)}, got {', '.join(input_ranks)}"
        )
    return tuple(CustomLossInput(name=name, rank=_rank(name, input_ranks[name])) for name in names)


def _rank(name: str, rank: int) -> int:
    if isinstance(rank, bool) or rank not in RANKS or (name == LOGPROBS and rank == 0):
        raise _refusal(
            f"the rank of {name} must "
            f"be {'1 or 2' if name == LOGPROBS else '0, 1 or 2'}, got {rank!r}"
        )
    return rank


# ------------------------------------------------------------------------------------ graph -> wire


def _wire_node(node: Node) -> CustomLossNode:
    target = _target(node)
    if node.op == "output":
        _check_output(node)
    return CustomLossNode(
        op=cast("Any", node.op),
        name=node.name,
        target=target,
        args=[_wire_argument(argument) for argument in node.args],
        kwargs={name: _wire_argument(argument) for name, argument in node.kwargs.items()},
    )


def _target(node: Node) -> str:
    if node.op == "get_attr":
        raise _refusal("the loss contains a tensor; make it a parameter or a number")
    if node.op == "call_module":
        raise _refusal("the loss calls a module; use only functions of tensors")
    if node.op == "call_function":
        return _function_name(cast("Callable[..., object]", node.target))
    target = str(node.target)
    if node.op == "call_method" and not _is_tensor_method(target):
        raise _refusal(f"the loss calls .{target}(), which a traced loss does not support")
    return target


def _is_tensor_method(name: str) -> bool:
    import torch

    known = callable(getattr(torch.Tensor, name, None)) and not name.startswith("_")
    return known and name not in _FORBIDDEN_METHODS


def _function_name(function: Callable[..., object]) -> str:
    name = _public_names().get(id(function))
    if name is None:
        shown = getattr(function, "__name__", function)
        raise _refusal(
            f"the loss calls {shown!r}, which is not a function of torch, math or operator"
        )
    return name


@functools.cache
def _public_names() -> dict[int, str]:
    """Return the name of every function that a loss may call, by its identity; some call themselves
    otherwise.
    """
    import torch

    homes = {
        "operator": operator,
        "math": math,
        "torch": torch,
        "torch.nn.functional": torch.nn.functional,
        "torch.linalg": torch.linalg,
        "torch.special": torch.special,
        "torch.fft": torch.fft,
    }
    names = {id(getattr): "getattr"}
    for prefix, module in homes.items():
        for name, value in vars(module).items():
            if not name.startswith("_") and callable(value):
                names.setdefault(id(value), f"{prefix}.{name}")
    return names


def _check_output(node: Node) -> None:
    from torch.fx import Node

    (value,) = node.args
    if (
        not isinstance(value, tuple)
        or len(value) != 2
        or not isinstance(value[0], Node)
        or not isinstance(value[1], dict)
    ):
        raise _refusal("the loss must return a tensor and a dict of metrics")
    for name, metric in cast("dict[object, object]", value[1]).items():
        if not isinstance(name, str) or not _METRIC_NAME.fullmatch(name):
            raise _refusal(
                f"the metric {name!r} must be named custom/<name>:sum "
                "or custom/<name>:mean, in lower case"
            )
        if not isinstance(metric, Node):
            raise _refusal(f"the metric {name!r} must be a tensor")


def _wire_argument(argument: object) -> Any:
    """Convert an argument: JSON scalars and lists stay unchanged; anything else is an object with
    one key.
    """
    from torch.fx import Node

    if isinstance(argument, Node):
        return {"ref": argument.name}
    if argument is None or isinstance(argument, bool | int | str):
        return argument
    if isinstance(argument, float):
        return argument if math.isfinite(argument) else {"float": str(argument)}
    if isinstance(argument, tuple):
        return {"tuple": [_wire_argument(item) for item in cast("tuple[object, ...]", argument)]}
    if isinstance(argument, list):
        return [_wire_argument(item) for item in cast("list[object]", argument)]
    if isinstance(argument, dict):
        return {
            "dict": {
                str(name): _wire_argument(item)
                for name, item in cast("dict[object, object]", argument).items()
            }
        }
    if isinstance(argument, slice):
        return {
            "slice": [
                _wire_argument(part) for part in (argument.start, argument.stop, argument.step)
            ]
        }
    return {"ellipsis": True} if argument is ... else _wire_constant(argument)


def _wire_constant(argument: object) -> dict[str, str]:
    import torch

    kinds = {
        "dtype": torch.dtype,
        "device": torch.device,
        "layout": torch.layout,
        "memory_format": torch.memory_format,
    }
    for name, kind in kinds.items():
        if isinstance(argument, kind):
            return {name: str(argument).removeprefix("torch.")}
    raise _refusal(f"{argument!r} cannot be an argument of a traced operation")
