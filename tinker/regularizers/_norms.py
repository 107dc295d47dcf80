"""Terms that are small where the log-probabilities, or their distances from a centre, are small."""

# pyright: reportUnknownMemberType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from tinker.custom_loss import Tensor
from tinker.regularizers._cells import (
    REDUCTIONS,
    LossInput,
    Reduction,
    check_input,
    check_mask,
    count_cells,
    read_input,
    reduce,
    select,
)
from tinker.types.datum import Datum

if TYPE_CHECKING:
    import torch

Target: TypeAlias = Literal["logprobs", "probs"] | LossInput
"""The log-probabilities, the probabilities, or an input of the datums (which nothing can train: it is only reported)."""


def _check_target(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in ("logprobs", "probs") and not isinstance(value, LossInput):
        raise ValueError(f"target must be 'logprobs', 'probs' or a LossInput, got {value!r}")


def _check_center(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and value != "mean" and not isinstance(value, (int, float, LossInput)):
        raise ValueError(f"center must be None, 'mean', a number or a LossInput, got {value!r}")


@attrs.frozen(kw_only=True)
class _Elementwise:
    """What the terms of this module have in common: what they look at, and how values become one."""

    target: Target = attrs.field(default="logprobs", validator=_check_target)
    reduction: Reduction = attrs.field(default="sum", validator=attrs.validators.in_(REDUCTIONS))
    mask: str | None = None

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for datums that lack an input, or have it in another shape."""
        check_mask(data, self.mask)
        for index, datum in enumerate(data):
            for name in self._inputs():
                check_input(index, datum, name)

    def _inputs(self) -> list[str]:
        return [self.target.name] if isinstance(self.target, LossInput) else []

    def _select(self, data: list[Datum], logprobs: list[Tensor]) -> torch.Tensor:
        """Return the values of the target that count, as one vector."""
        if isinstance(self.target, LossInput):
            name = self.target.name
            logprobs = [read_input(datum, name, part) for datum, part in zip(data, logprobs, strict=True)]
        found = select(logprobs, count_cells(data, self.mask))
        return found.exp() if self.target == "probs" else found


@attrs.frozen(kw_only=True)
class L1(_Elementwise):
    """Sum of absolute values, ``sum |x|``, which drives values to 0 one by one.

    Attributes:
        target: What ``x`` is: ``"logprobs"``, ``"probs"`` or a :class:`LossInput`.
        reduction: ``"sum"`` over all counted values of all datums, or their ``"mean"``.
        mask: The loss input whose zeros are left out, such as ``"weights"``; None counts everything.

    Metrics: ``mean``, the mean absolute value.
    """

    def __call__(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        sizes = self._select(data, logprobs).abs()
        return reduce(sizes, self.reduction), {"mean": float(sizes.detach().mean())}


@attrs.frozen(kw_only=True)
class L2(_Elementwise):
    """Sum of squares, ``sum y²`` with ``y = x - center``, cut to ``[-clip, clip]`` if given.

    Attributes:
        target: What ``x`` is: ``"logprobs"``, ``"probs"`` or a :class:`LossInput`.
        reduction: ``"sum"`` over all counted values of all datums, or their ``"mean"``.
        mask: The loss input whose zeros are left out; None counts everything.
        clip: The largest distance that counts; values further off have no gradient. None cuts nothing.
        center: What is subtracted: a number, ``"mean"`` (of all counted values), a :class:`LossInput`, or None for 0.

    Metrics: ``mean``, the mean of ``x²``; ``center`` where that is one number.
    """

    clip: float | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.gt(0)))
    center: float | Literal["mean"] | LossInput | None = attrs.field(default=None, validator=_check_center)

    def __call__(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        values = self._select(data, logprobs)
        center = self._center(data, logprobs, values)
        offsets = values - center
        if self.clip is not None:
            offsets = offsets.clamp(-self.clip, self.clip)
        metrics = {"mean": float(values.detach().square().mean())}
        if center.numel() == 1:
            metrics["center"] = float(center.detach())
        return reduce(offsets.square(), self.reduction), metrics

    def _center(self, data: list[Datum], logprobs: list[Tensor], values: Tensor) -> torch.Tensor:
        if isinstance(self.center, LossInput):
            name = self.center.name
            parts = [read_input(datum, name, part) for datum, part in zip(data, logprobs, strict=True)]
            return select(parts, count_cells(data, self.mask))
        return values.mean() if self.center == "mean" else values.new_tensor(self.center or 0.0)

    def _inputs(self) -> list[str]:
        inputs = _Elementwise._inputs(self)
        return [*inputs, self.center.name] if isinstance(self.center, LossInput) else inputs


@attrs.frozen(kw_only=True)
class ElasticNet(_Elementwise):
    """Mixture of L1 and L2: ``l1_ratio · sum |x| + (1 - l1_ratio) · sum x²``.

    Attributes:
        target: What ``x`` is: ``"logprobs"``, ``"probs"`` or a :class:`LossInput`.
        reduction: ``"sum"`` over all counted values of all datums, or their ``"mean"``.
        mask: The loss input whose zeros are left out; None counts everything.
        l1_ratio: The share of L1, from 0 to 1.

    Metrics: ``l1`` and ``l2``, the two parts before they are mixed.
    """

    l1_ratio: float = attrs.field(default=0.5, validator=[attrs.validators.ge(0), attrs.validators.le(1)])

    def __call__(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        values = self._select(data, logprobs)
        one, two = reduce(values.abs(), self.reduction), reduce(values.square(), self.reduction)
        value = self.l1_ratio * one + (1.0 - self.l1_ratio) * two
        return value, {"l1": float(one.detach()), "l2": float(two.detach())}
