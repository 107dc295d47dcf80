"""One pass over the nodes of a loss with torch, within limits of size."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false
# (torch is typed in part only)

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tinker_wire import models

from tinker.local.engines import EngineError
from tinker.local.losses.operations import ATTRIBUTES, DTYPES, FUNCTIONS, OPERATORS, SIZED

if TYPE_CHECKING:
    import torch

MAX_CELLS = 2**27  # of one tensor: half a gigabyte in float32
MAX_NUMBER = 2**63


class Evaluation:
    """One pass over the nodes with the inputs of one datum."""

    def __init__(self, torch: Any, inputs: Mapping[str, Any]) -> None:
        self._torch, self._inputs = torch, inputs
        self._values: dict[str, Any] = {}

    def run(self, nodes: Sequence[models.CustomLossNode]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss and the metrics. Raises EngineError naming the node that fails."""
        for node in nodes[:-1]:
            try:
                self._values[node.name] = self._check_value(self._value(node))
            except Exception as error:  # whatever torch says about these values is the user's to know
                raise EngineError(f"node {node.name!r} ({node.target}): {error}") from error
        loss, metrics = self._argument(nodes[-1].args[0])
        for name, value in {"the loss": loss, **metrics}.items():
            if not isinstance(value, self._torch.Tensor) or value.ndim != 0:
                raise EngineError(f"{name} is not a tensor without dimensions")
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
            raise EngineError("operands must be numbers or tensors")
        if name == "pow" and not any(isinstance(argument, self._torch.Tensor) for argument in arguments):
            return float(arguments[0]) ** float(arguments[1])
        return OPERATORS[name](*arguments)

    def _attribute(self, owner: Any, name: Any) -> Any:
        if name not in ATTRIBUTES or not isinstance(owner, (self._torch.Tensor, tuple)):
            raise EngineError(f"the attribute {name!r} is not among those a loss may read")
        return getattr(owner, name)

    def _item(self, owner: Any, index: Any) -> Any:
        if not isinstance(owner, (self._torch.Tensor, tuple, list)):
            raise EngineError("only tensors, tuples and lists have items")
        return owner[index]

    def _tensor(self, value: Any) -> Any:
        if not isinstance(value, self._torch.Tensor):
            raise EngineError("the first argument of a method must be a tensor")
        return value

    def _check_value(self, value: Any) -> Any:
        """Return the value. Raises EngineError when it is too large."""
        if isinstance(value, self._torch.Tensor) and value.numel() > MAX_CELLS:
            raise EngineError(f"a tensor of {value.numel()} values; the limit is {MAX_CELLS}")
        if isinstance(value, int) and abs(value) >= MAX_NUMBER:
            raise EngineError("a number that does not fit in 64 bits")
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
        raise EngineError(f"{kind} {value!r} is not allowed")


def _check_size(arguments: Sequence[Any]) -> None:
    """Raise EngineError when the integers among the arguments, multiplied, exceed the size of a tensor."""
    sizes = [n for a in arguments for n in _flatten(a) if isinstance(n, int) and not isinstance(n, bool)]
    if math.prod(max(1, abs(size)) for size in sizes) > MAX_CELLS:
        raise EngineError(f"sizes {sizes} make more than {MAX_CELLS} values")


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in cast("Sequence[Any]", value) for leaf in _flatten(item)]
    return [value]
