"""The functions, operators, methods and attributes that a traced loss may name: they compute, and nothing else.

Left out are those that draw random numbers, write into their arguments, read or write files, or give Python or numpy values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Functions of torch that are methods of tensors too.
_BOTH = _split_words("""
abs absolute acos acosh add addcdiv addcmul all allclose amax amin aminmax any arccos arcsin arctan argmax argmin argsort asin
asinh atan atan2 atanh baddbmm bincount bitwise_and bitwise_not bitwise_or bitwise_xor bmm ceil chunk clamp clamp_max clamp_min
clip clone copysign cos cosh count_nonzero cross cummax cummin cumprod cumsum deg2rad detach diag diagonal diff digamma dist
div divide dot eq equal erf erfc erfinv exp exp2 expm1 fix flatten flip fliplr floor floor_divide fmax fmin fmod frac gather ge
greater greater_equal gt heaviside histc hypot index_select inner isclose isfinite isinf isnan isneginf isposinf kthvalue le
lerp less less_equal lgamma log log10 log1p log2 log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not
logical_or logical_xor logit logsumexp lt masked_fill masked_scatter masked_select matmul max maximum mean median min minimum
mm mode movedim mul multiply mv nan_to_num nanmean nanmedian nanquantile nansum narrow ne neg negative norm not_equal
permute polygamma positive pow prod quantile rad2deg ravel reciprocal relu remainder renorm reshape roll round rsqrt
scatter scatter_add select sgn sigmoid sign signbit sin sinc sinh softmax sort split sqrt square squeeze std sub subtract sum
swapaxes t take take_along_dim tan tanh tensor_split topk trace transpose tril triu true_divide trunc unbind unflatten
unique unique_consecutive unsqueeze var vdot where xlogy
""")
_TORCH_ONLY = _split_words("""
arange as_tensor atleast_1d atleast_2d broadcast_tensors cat celu column_stack concat cosine_similarity einsum eye full
full_like hstack linspace ones ones_like outer pairwise_distance rsub selu stack std_mean tensor tensordot threshold tile
var_mean vstack zeros zeros_like
""")
_FUNCTIONAL = _split_words("""
binary_cross_entropy binary_cross_entropy_with_logits celu cosine_similarity cross_entropy elu gelu glu hardsigmoid hardswish
hardtanh hinge_embedding_loss huber_loss kl_div l1_loss leaky_relu log_softmax logsigmoid margin_ranking_loss mse_loss
nll_loss normalize pad pairwise_distance poisson_nll_loss relu relu6 selu sigmoid silu smooth_l1_loss soft_margin_loss softmax
softmin softplus softshrink softsign tanh tanhshrink threshold
""")
_MATH = _split_words("""
acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh degrees erf erfc exp exp2 expm1 fabs floor fmod gamma hypot
isfinite isinf isnan lgamma log log10 log1p log2 pow radians sin sinh sqrt tan tanh trunc
""")
_OPERATORS = _split_words(
    "abs add and_ eq floordiv ge gt inv invert le lt matmul mod mul ne neg not_ or_ pos pow sub truediv xor"
)
#: Tracing ``x += y`` records the in-place operator; a loss must not change its inputs, so it is done as ``x = x + y``.
_IN_PLACE = _split_words("iadd isub imul itruediv ifloordiv imod ipow")
OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _OPERATORS},
    **{name: getattr(operator, name.removeprefix("i")) for name in _IN_PLACE},
}
METHODS = _BOTH | _split_words("""
bfloat16 bool contiguous dim double expand expand_as float half int long ndimension nelement new_full new_ones new_tensor
new_zeros numel repeat repeat_interleave reshape_as size to type_as unfold view view_as
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
#: Of the functions and methods above, those that make a tensor of a size they are told.
SIZED = _split_words("arange eye full linspace new_full new_ones new_zeros ones pad repeat repeat_interleave tile zeros")
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
DTYPES = _split_words("bool uint8 int8 int16 short int32 int int64 long float16 half bfloat16 float32 float float64 double")
