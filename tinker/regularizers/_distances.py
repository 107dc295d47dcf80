"""Terms about how far log-probabilities are from others: by rows where targets are [N, K], by estimates where they are [N]."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from tinker.custom_loss import Tensor
from tinker.regularizers._cells import (
    REDUCTIONS,
    Reduction,
    Reference,
    check_mask,
    check_reference,
    check_rows,
    count_cells,
    is_one_for_each_token,
    read_reference,
    reduce,
    select,
)
from tinker.regularizers._rows import (
    Divergence,
    compute_rows,
    divergence,
    middle_divergence,
    reverse_divergence,
    summarize,
    symmetric_divergence,
)
from tinker.types.datum import Datum

if TYPE_CHECKING:
    import torch

in_ = attrs.validators.in_


KLDirection: TypeAlias = Literal["forward", "reverse", "symmetric"]
Estimator: TypeAlias = Literal["k1", "k2", "k3"]
_DIRECTIONS: dict[str, Divergence] = {"forward": divergence, "reverse": reverse_divergence, "symmetric": symmetric_divergence}
_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda drift: drift,
    "k2": lambda drift: drift.square() / 2,
    "k3": lambda drift: drift.neg().exp() - 1 + drift,
}


def _check_reference(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not callable(value) and not isinstance(value, Sequence):
        raise TypeError(f"{attribute.name} must be the name of a loss input, a function or a list of arrays, got {value!r}")


@attrs.frozen
class _Compared:
    """A term about log-probabilities beside a reference's: what it looks at, and how values become one."""

    reference: Reference = attrs.field(validator=_check_reference)
    reduction: Reduction = attrs.field(default="mean", kw_only=True, validator=in_(REDUCTIONS))
    mask: str | None = attrs.field(default=None, kw_only=True)

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for datums that lack an input, or whose shape the term cannot use."""
        self._check_shape(data)
        check_mask(data, self.mask)
        check_reference(data, self.reference)

    def __call__(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        self.check(data)
        values = self._compare(logprobs, read_reference(data, logprobs, self.reference), count_cells(data, self.mask))
        return reduce(values, self.reduction), summarize(values)

    def _check_shape(self, data: Sequence[Datum]) -> None:
        raise NotImplementedError

    def _compare(self, logprobs: list[Tensor], references: list[Tensor], cells: list[Tensor]) -> Tensor:
        """Compute the value of each token, row or datum."""
        raise NotImplementedError


@attrs.frozen
class KL(_Compared):
    """KL divergence from a reference, in nats per token.

    With targets ``[N, K]`` each row is a distribution, and the value is that of ``KL(P|Q) = sum p (log p - log q)``; terms with
    ``p`` below 1e-10 add nothing, and the difference of logarithms counts up to 100. With targets ``[N]``, one
    log-probability ``lp`` for each token beside the reference's ``ref``, the value is an estimate for tokens sampled from the
    model, with ``d = lp - ref``:

    - ``k1``: ``d``. For such tokens its gradient is 0 on average, so it reports but does not hold.
    - ``k2``: ``d² / 2``. On average its gradient is that of KL(model|reference).
    - ``k3``: ``exp(-d) - 1 + d``. Never negative, on average the divergence itself; on average its gradient is that of
      KL(reference|model).

    Attributes:
        reference: The name of the loss input with the reference's log-probabilities, a function of the datums that computes
            them, or a list with one array for each datum; each in the shape of ``target_tokens``.
        estimator: For targets ``[N]``; None is ``k3``.
        direction: For targets ``[N, K]``: ``forward`` is KL(model|reference), ``reverse`` KL(reference|model), ``symmetric``
            their mean; None is ``forward``.
        reduction: The ``"mean"`` over all counted tokens of all datums, or their ``"sum"``.
        mask: The loss input whose zeros are left out, such as ``"weights"``; None counts everything.

    Metrics: ``mean``, ``min`` and ``max`` of the tokens.
    """

    estimator: Estimator | None = attrs.field(default=None, kw_only=True, validator=in_((None, *_ESTIMATORS)))
    direction: KLDirection | None = attrs.field(default=None, kw_only=True, validator=in_((None, *_DIRECTIONS)))

    def _check_shape(self, data: Sequence[Datum]) -> None:
        if is_one_for_each_token(data):
            if self.direction is not None:
                raise ValueError("direction needs target_tokens of shape [N, K]; for [N] choose an estimator")
        elif self.estimator is not None:
            raise ValueError("estimator needs target_tokens of shape [N]; for [N, K] choose a direction")

    def _compare(self, logprobs: list[Tensor], references: list[Tensor], cells: list[Tensor]) -> Tensor:
        if logprobs[0].ndim == 1:
            drift: Tensor = select(logprobs, cells) - select(references, cells)
            return _ESTIMATORS[self.estimator or "k3"](drift)
        return compute_rows(_DIRECTIONS[self.direction or "forward"], logprobs, references, cells)


@attrs.frozen
class JS(_Compared):
    """Jensen-Shannon divergence from a reference: symmetric, and at most ln 2. Targets must be ``[N, K]``.

    Attributes:
        reference: As of :class:`KL`.
        reduction: The ``"mean"`` over all counted tokens of all datums, or their ``"sum"``.
        mask: The loss input whose zeros are left out; None counts everything.

    Metrics: ``mean``, ``min`` and ``max`` of the tokens.
    """

    def _check_shape(self, data: Sequence[Datum]) -> None:
        check_rows(data, "JS")

    def _compare(self, logprobs: list[Tensor], references: list[Tensor], cells: list[Tensor]) -> Tensor:
        return compute_rows(middle_divergence, logprobs, references, cells)


def _cosine_distance(ours: Tensor, theirs: Tensor) -> torch.Tensor:
    import torch

    norms = [torch.linalg.vector_norm(part).clamp(min=1e-8) for part in (ours, theirs)]
    product: torch.Tensor = norms[0] * norms[1]
    return 1 - (ours * theirs).sum() / product


@attrs.frozen
class Consistency(_Compared):
    """Difference of the log-probabilities from those of a partner, such as the same text with another prompt.

    Attributes:
        reference: The partner's log-probabilities, as of :class:`KL`.
        metric: ``mse``, ``(a - b)²`` for each token; ``l1``, ``|a - b|``; ``cosine``, ``1 - a·b / (|a| |b|)`` for each datum;
            ``kl``, for targets ``[N, K]`` the mean of KL(a|b) and KL(b|a) for each row.
        reduction: The ``"mean"`` over all counted tokens (with ``cosine`` datums), or their ``"sum"``.
        mask: The loss input whose zeros are left out; None counts everything.

    Metrics: ``mean``, ``min`` and ``max`` of the tokens or datums.
    """

    reference: Reference = attrs.field(default="original_logprobs", validator=_check_reference)
    metric: Literal["mse", "l1", "cosine", "kl"] = attrs.field(
        default="mse", kw_only=True, validator=in_(("mse", "l1", "cosine", "kl"))
    )

    def _check_shape(self, data: Sequence[Datum]) -> None:
        if self.metric == "kl":
            check_rows(data, "metric='kl'")

    def _compare(self, logprobs: list[Tensor], references: list[Tensor], cells: list[Tensor]) -> Tensor:
        if self.metric == "kl":
            return compute_rows(symmetric_divergence, logprobs, references, cells)
        if self.metric == "cosine":
            import torch

            pairs = [(a[kept], b[kept]) for a, b, kept in zip(logprobs, references, cells, strict=True) if kept.any()]
            return torch.stack([_cosine_distance(*pair) for pair in pairs])
        offsets = select(logprobs, cells) - select(references, cells)
        return offsets.square() if self.metric == "mse" else offsets.abs()
