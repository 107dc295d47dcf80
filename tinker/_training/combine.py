"""Results of the chunks of one call -> one result. Metric keys are ``name:reduction``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinker.types.results import ForwardBackwardOutput

Values = Sequence[float]
Weights = Sequence[int]

_HASH_MODULUS = 1 << 64


def _mean(values: Values, weights: Weights) -> float:
    """Return the mean, weighted by the number of outputs; the plain mean where no chunk has any."""
    total = sum(weights)
    if total == 0:
        return sum(values) / len(values)
    return sum(w * x for w, x in zip(weights, values, strict=True)) / total


def _hash2(values: Values, _: Weights) -> float:
    return sum(int(x) % _HASH_MODULUS for x in values) % _HASH_MODULUS


def _hash_in_order(values: Values, _: Weights) -> float:
    """Return the official client's hash up to 0.7, for comparison; the hash of a tuple of integers
    has no salt.
    """
    return hash(tuple(sorted(int(x) for x in values)))


REDUCTIONS: dict[str, Callable[[Values, Weights], float]] = {
    "sum": lambda values, _: sum(values),
    "mean": _mean,
    "min": lambda values, _: min(values),
    "max": lambda values, _: max(values),
    "slack": lambda values, weights: max(values) - _mean(values, weights),
    "hash2": _hash2,
    "hash_unordered": _hash_in_order,  # of older servers
}


def combine(results: Sequence[ForwardBackwardOutput]) -> ForwardBackwardOutput:
    """Return one result: outputs concatenated in order, metrics reduced.

    ``sum``, ``mean`` (weighted by outputs), ``min``, ``max``, ``slack`` (largest minus mean),
    ``hash2`` (sum modulo 2^64), ``hash_unordered`` (the hash of the sorted values), and ``unique``
    (the chunks' values under ``key``, ``key_1``, ``key_2`` ...). Of several chunks, a metric that
    one of them lacks or whose reduction is not known is left out; of one chunk every metric is
    kept.
    """
    first = results[0]
    weights = [len(result.loss_fn_outputs) for result in results]
    metrics: dict[str, float] = {}
    for key, own in first.metrics.items():
        values = [result.metrics[key] for result in results if key in result.metrics]
        if len(values) == len(results):
            metrics.update(_reduce(key, own, values, weights))
    outputs = [output for result in results for output in result.loss_fn_outputs]
    return ForwardBackwardOutput(first.loss_fn_output_type, outputs, metrics)


def _reduce(key: str, own: float, values: Values, weights: Weights) -> dict[str, float]:
    suffix = key.rpartition(":")[2]
    if suffix == "unique":
        return {
            key if index == 0 else f"{key}_{index}": value for index, value in enumerate(values)
        }
    reduce = REDUCTIONS.get(suffix)
    if reduce is not None:
        return {key: reduce(values, weights)}
    return {key: own} if len(values) == 1 else {}
