"""The evaluation of a traced loss: the operations of torch that it may name, and the pass over its
graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from tinker_wire import models

from tinker.local.engines.protocol import EngineError

if TYPE_CHECKING:
    import torch


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Functions of torch that are methods of tensors too.
_BOTH = _split_words("""
abs absolute acos acosh add addcdiv addcmul all allclose amax amin aminmax any arccos arcsin arctan
argmax argmin argsort asin asinh atan atan2 atanh baddbmm bincount bitwise_and bitwise_not
bitwise_or bitwise_xor bmm ceil chunk clamp clamp_max clamp_min clip clone copysign cos cosh
count_nonzero cross cummax cummin cumprod cumsum deg2rad detach diag diagonal diff digamma dist div
divide dot eq equal erf erfc erfinv exp exp2 expm1 fix flatten flip fliplr floor floor_divide fmax
fmin fmod frac gather ge greater greater_equal gt heaviside histc hypot index_select inner isclose
isfinite isinf isnan isneginf isposinf kthvalue le lerp less less_equal lgamma log log10 log1p log2
log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not logical_or logical_xor logit
logsumexp lt masked_fill masked_scatter masked_select matmul max maximum mean median min minimum mm
mode movedim mul multiply mv nan_to_num nanmean nanmedian nanquantile nansum narrow ne neg negative
norm not_equal permute polygamma positive pow prod quantile rad2deg ravel reciprocal relu remainder
renorm reshape roll round rsqrt scatter scatter_add select sgn sigmoid sign signbit sin sinc sinh
softmax sort split sqrt square squeeze std sub subtract sum swapaxes t take take_along_dim tan tanh
tensor_split topk trace transpose tril triu true_divide trunc unbind unflatten unique
unique_consecutive unsqueeze var vdot where xlogy
""")
_TORCH_ONLY = _split_words("""
arange as_tensor atleast_1d atleast_2d broadcast_tensors cat celu column_stack concat
cosine_similarity einsum eye full full_like hstack linspace ones ones_like outer pairwise_distance
rsub selu stack std_mean tensor tensordot threshold tile var_mean vstack zeros zeros_like
""")
_FUNCTIONAL = _split_words("""
binary_cross_entropy binary_cross_entropy_with_logits celu cosine_similarity cross_entropy elu gelu
glu hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss kl_div l1_loss leaky_relu
log_softmax logsigmoid margin_ranking_loss mse_loss nll_loss normalize pad pairwise_distance
poisson_nll_loss relu relu6 selu sigmoid silu smooth_l1_loss soft_margin_loss softmax softmin
softplus softshrink softsign tanh tanhshrink threshold
""")
_MATH = _split_words("""
acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh degrees erf erfc exp exp2 expm1 fabs
floor fmod gamma hypot isfinite isinf isnan lgamma log log10 log1p log2 pow radians sin sinh sqrt
tan tanh trunc
""")
_OPERATORS = _split_words(
    "abs add and_ eq floordiv ge gt inv invert le lt matmul mod mul ne neg not_ or_ "
    "pos pow sub truediv xor"
)
#: Tracing ``x += y`` records the in-place operator; a loss must not change its inputs, so it is
#: done as ``x = x + y``.
_IN_PLACE = _split_words("iadd isub imul itruediv ifloordiv imod ipow")
OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _OPERATORS},
    **{name: getattr(operator, name.removeprefix("i")) for name in _IN_PLACE},
}
METHODS = _BOTH | _split_words("""
bfloat16 bool contiguous dim double expand expand_as float half int long ndimension nelement
new_full new_ones new_tensor new_zeros numel repeat repeat_interleave reshape_as size to type_as
unfold view view_as
""")
#: What a function may be called, and what it is: tracers name some by where torch keeps them.
FUNCTIONS: Mapping[str, str] = {
    **{f"torch.{name}": f"torch.{name}" for name in _BOTH | _TORCH_ONLY},
    **{f"torch.functional.{name}": f"torch.{name}" for name in _BOTH | _TORCH_ONLY},
    **{f"torch.nn.functional.{name}": f"torch.nn.functional.{name}" for name in _FUNCTIONAL},
    **{f"torch._C._nn.{name}": f"torch.nn.functional.{name}" for name in _FUNCTIONAL},
    "torch._C._nn.log_sigmoid": "torch.nn.functional.logsigmoid",
    "torch.nn.functional._threshold": "torch.nn.functional.threshold",
    **{f"math.{name}": f"math.{name}" for name in _MATH},
    **{f"operator.{name}": f"operator.{name}" for name in (*OPERATORS, "getitem")},
    "getattr": "getattr",
    "builtins.getattr": "getattr",
}
ATTRIBUTES = _split_words("shape ndim dtype device T mT values indices")
#: The keys of arguments that are not JSON scalars or lists, and what they hold.
ARGUMENT_TYPES: Mapping[str, type] = {
    "ref": str,
    "tuple": list,
    "dict": dict,
    "slice": list,
    "ellipsis": bool,
    "float": str,
    "dtype": str,
    "device": str,
    "layout": str,
    "memory_format": str,
}
DTYPES = _split_words(
    "bool uint8 int8 int16 short int32 int int64 long float16 half bfloat16 "
    "float32 float float64 double"
)


# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false
# (torch is typed in part only)


MAX_NUMBER = 2**63
MAX_ARGUMENTS = 2**16  # numbers and tensors in the lists that one node is given


class Evaluation:
    """One pass over the nodes with the inputs of one datum."""

    def __init__(self, torch: Any, inputs: Mapping[str, Any]) -> None:
        self._torch, self._inputs = torch, inputs
        self._values: dict[str, Any] = {}

    def run(
        self, nodes: Sequence[models.CustomLossNode]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss and the metrics. Raises EngineError naming the node that fails.

        A value is freed after the last node that refers to it.
        """
        last = {name: node.name for node in nodes for name in node_references(node)}
        for node in nodes[:-1]:
            try:
                self._values[node.name] = value = self._value(node)
                if isinstance(value, int) and abs(value) >= MAX_NUMBER:
                    raise EngineError("a number that does not fit in 64 bits")
            except Exception as error:
                # whatever torch says about these values is the user's to know
                raise EngineError(f"node {node.name!r} ({node.target}): {error}") from error
            for name in {node.name, *node_references(node)}:
                if last.get(name, node.name) == node.name:
                    del self._values[name]
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
        if (
            sum(1 for _ in islice(flatten([arguments, *options.values()]), MAX_ARGUMENTS + 1))
            > MAX_ARGUMENTS
        ):
            raise EngineError(f"its arguments have more than {MAX_ARGUMENTS} numbers and tensors")
        if node.op == "call_method":
            if not isinstance(arguments[0], self._torch.Tensor):
                raise EngineError("the first argument of a method must be a tensor")
            return getattr(arguments[0], node.target)(*arguments[1:], **options)
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
        if not all(
            isinstance(argument, (self._torch.Tensor, int, float)) for argument in arguments
        ):
            raise EngineError("operands must be numbers or tensors")
        if name == "pow" and not any(
            isinstance(argument, self._torch.Tensor) for argument in arguments
        ):
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


def flatten(value: Any) -> Iterator[Any]:
    """Yield what lists in lists have in them."""
    if isinstance(value, (tuple, list)):
        for item in cast("Sequence[Any]", value):
            yield from flatten(item)
    else:
        yield value


def node_references(node: models.CustomLossNode) -> list[str]:
    """Return the nodes that a node refers to, as often as it does. Raises EngineError for an
    unknown form of an argument.
    """
    return find_references([*node.args, *node.kwargs.values()])


def find_references(argument: object) -> list[str]:
    """Return the nodes that an argument refers to. Raises EngineError for an unknown form."""
    if isinstance(argument, list):
        return [name for item in cast("list[object]", argument) for name in find_references(item)]
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
        return find_references(list(cast("dict[str, object]", value).values()))
    return find_references(value) if kind in ("tuple", "slice") else []
