"""How the results of one call in several requests become one, under the names that older code
imports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinker._training import REDUCTIONS, combine
from tinker.types import ForwardBackwardOutput, LossFnOutput

__all__ = ["REDUCE_MAP", "ForwardBackwardOutput", "LossFnOutput", "combine_fwd_bwd_output_results"]


def _weigh_alike(name: str) -> Callable[..., float]:
    """Return a reduction that may be called without weights, one value of as many outputs as
    another then.
    """
    reduction = REDUCTIONS[name]

    def reduce(values: Sequence[float], weights: Sequence[int] | None = None) -> float:
        return reduction(values, [1] * len(values) if weights is None else weights)

    return reduce


def _keep_all(values: Sequence[float]) -> Sequence[float]:
    return values


#: How the metrics are reduced whose names end in these words; ``unique`` ones are not reduced.
REDUCE_MAP: dict[str, Callable[..., float] | Callable[[Sequence[float]], Sequence[float]]] = {
    **{name: _weigh_alike(name) for name in REDUCTIONS},
    "unique": _keep_all,
}


def combine_fwd_bwd_output_results(
    results: Sequence[ForwardBackwardOutput],
) -> ForwardBackwardOutput:
    """Return one result: outputs in order, metrics reduced by the last word of their names.

    >>> halves = [ForwardBackwardOutput("ArrayRecord", [{}], {"loss:sum": 1.5}) for _ in range(2)]
    >>> combine_fwd_bwd_output_results(halves).loss
    3.0
    """
    return combine(results) if results else ForwardBackwardOutput("", [], {})
