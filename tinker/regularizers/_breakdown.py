"""The metrics of a regularized loss, sorted by term."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

_TOTAL = "reg/total"


@attrs.frozen(kw_only=True)
class TermBreakdown:
    """What one step reported for one term.

    Attributes:
        value: The value without the weight.
        weight: The weight.
        contribution: The weight times the value.
        grad_norm: The L2 norm of the gradient of the value by the log-probabilities; None when it
            was not tracked, or the term does not depend on them.
        grad_norm_weighted: That times the weight.
        metrics: The metrics of the term itself.
    """

    value: float
    weight: float
    contribution: float
    grad_norm: float | None = None
    grad_norm_weighted: float | None = None
    metrics: Mapping[str, float] = attrs.field(factory=lambda: dict[str, float]())


@attrs.frozen(kw_only=True)
class LossBreakdown:
    """What one step reported for a loss made by :func:`regularized`.

    Attributes:
        total: The loss with all terms.
        base: The loss without them.
        added: What the terms add, each with its weight.
        terms: The terms by name, in their order.
        base_grad_norm: The L2 norm of the gradient of the base by the log-probabilities; None when
            it was not tracked.
        total_grad_norm: That of the whole.
    """

    total: float
    base: float
    added: float
    terms: Mapping[str, TermBreakdown]
    base_grad_norm: float | None = None
    total_grad_norm: float | None = None

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float]) -> LossBreakdown:
        """Sort the metrics of a step.

        Args:
            metrics: The metrics of a ``ForwardBackwardOutput``.

        Returns:
            The same numbers by term.

        Raises:
            ValueError: They are not those of a loss made by :func:`regularized`.
        """
        if _TOTAL not in metrics or "base/loss" not in metrics:
            raise ValueError("these are not the metrics of a loss made by regularized()")
        found: dict[str, dict[str, float]] = {}
        for key, value in metrics.items():
            if key.startswith("reg/") and key != _TOTAL:
                _, name, metric = key.split("/", 2)
                found.setdefault(name, {})[metric] = value
        return cls(
            total=metrics["base/loss"] + metrics[_TOTAL],
            base=metrics["base/loss"],
            added=metrics[_TOTAL],
            terms={name: _read_term(fields) for name, fields in found.items()},
            base_grad_norm=metrics.get("base/grad_norm"),
            total_grad_norm=metrics.get("total_grad_norm"),
        )


def _read_term(fields: Mapping[str, float]) -> TermBreakdown:
    ours = {field.name for field in attrs.fields(TermBreakdown)} - {"metrics"}
    known = {name: value for name, value in fields.items() if name in ours}
    return TermBreakdown(
        **known, metrics={name: value for name, value in fields.items() if name not in ours}
    )
