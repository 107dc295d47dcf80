"""The terms: what they look at, distances from a reference, entropy, norms, similar rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.custom_loss import Tensor
from tinker.types.model_input import Datum
from tinker.types.tensor_data import TensorData, dimensions, is_torch

if TYPE_CHECKING:
    import torch

# pyright: reportUnknownMemberType=false
# (torch is typed in part only)


Reduction: TypeAlias = Literal["sum", "mean"]
"""Whether the values of all counted tokens (or rows) of all datums are added up or averaged."""

ComputeReference: TypeAlias = Callable[[list[Datum]], Sequence[Any]]
Reference: TypeAlias = str | ComputeReference | Sequence[Any]
"""Log-probabilities to compare with: the name of a loss input, a function of the datums, or one
array for each datum.
"""

REDUCTIONS = ("sum", "mean")


@attrs.frozen
class LossInput:
    """Name of an input of the datums: a key of ``loss_fn_inputs`` whose tensor has the shape of
    ``target_tokens``.

    Attributes:
        name: The key.
    """

    name: str


# -------------------------------------------------------------------------- before anything is sent


def check_input(index: int, datum: Datum, name: str, *, by_token: bool = False) -> None:
    """Raise ValueError unless the datum has the input in the shape of its targets; ``by_token`` one
    for each token will do.
    """
    tensor = datum.loss_fn_inputs.get(name)
    if tensor is None:
        raise ValueError(f"data[{index}].loss_fn_inputs is missing {name!r}")
    shape, targets = dimensions(tensor), dimensions(datum.loss_fn_inputs["target_tokens"])
    if shape != targets and not (by_token and shape == targets[:1]):
        raise ValueError(
            f"data[{index}].loss_fn_inputs[{name!r}] has shape "
            f"{list(shape)}, target_tokens has {list(targets)}"
        )


def check_mask(data: Sequence[Datum], mask: str | None) -> None:
    """Raise ValueError unless each datum has the mask, and something of all of them counts."""
    if mask is None:
        return
    for index, datum in enumerate(data):
        check_input(index, datum, mask, by_token=True)
    if not any(datum.loss_fn_inputs[mask].values.any() for datum in data):
        raise ValueError(f"nothing counts: {mask!r} is 0 in every datum")


def check_reference(data: Sequence[Datum], reference: Reference) -> None:
    """Raise ValueError for a reference that does not fit the datums; what a function computes is
    not known yet.
    """
    if isinstance(reference, str):
        for index, datum in enumerate(data):
            check_input(index, datum, reference)
    elif not callable(reference) and len(reference) != len(data):
        raise ValueError(f"the reference has {len(reference)} arrays for {len(data)} datums")


def check_rows(data: Sequence[Datum], what: str) -> None:
    """Raise ValueError unless every datum has targets ``[N, K]``."""
    for index, datum in enumerate(data):
        shape = dimensions(datum.loss_fn_inputs["target_tokens"])
        if len(shape) != 2:
            raise ValueError(
                f"data[{index}]: {what} needs target_tokens of shape [N, K], "
                "a distribution for each token"
            )


def is_one_for_each_token(data: Sequence[Datum]) -> bool:
    """Return whether targets are ``[N]``; ValueError when some are and others are not."""
    ranks = {len(dimensions(datum.loss_fn_inputs["target_tokens"])) for datum in data}
    if len(ranks) > 1:
        raise ValueError(
            "some datums have target_tokens of shape [N] and others [N, K]; use one shape in a step"
        )
    return ranks == {1}


# ---------------------------------------------------------------------------------- while computing


def read_input(datum: Datum, name: str, like: Tensor) -> torch.Tensor:
    """Return an input of a datum as a constant in the dtype of ``like``."""
    return _tensor(datum.loss_fn_inputs[name].to_numpy(), like)


def _tensor(values: object, like: Tensor) -> torch.Tensor:
    import torch

    if is_torch(values):
        return values.detach().to(like)
    if isinstance(values, TensorData):
        values = values.to_numpy()
    return torch.tensor(np.asarray(values), dtype=like.dtype, device=like.device)


def read_reference(
    data: list[Datum], logprobs: Sequence[Tensor], reference: Reference
) -> list[torch.Tensor]:
    """Return the reference of each datum as a constant; ValueError unless its shape is that of the
    log-probabilities.
    """
    if isinstance(reference, str):
        parts: Sequence[object] = [datum.loss_fn_inputs[reference] for datum in data]
    else:
        parts = reference(data) if callable(reference) else reference
    if len(parts) != len(data):
        raise ValueError(f"the reference has {len(parts)} arrays for {len(data)} datums")
    found = [_tensor(part, like) for part, like in zip(parts, logprobs, strict=True)]
    for index, (one, like) in enumerate(zip(found, logprobs, strict=True)):
        if one.shape != like.shape:
            raise ValueError(
                f"the reference of data[{index}] has shape {list(one.shape)}, its "
                f"log-probabilities {list(like.shape)}"
            )
    return found


def count_cells(data: Sequence[Datum], mask: str | None) -> list[torch.Tensor]:
    """Return which log-probabilities count, for each datum: those in the mask, of sparse targets
    those that are stored.
    """
    import torch

    return [torch.from_numpy(_cells_of(datum, mask)) for datum in data]


def _cells_of(datum: Datum, mask: str | None) -> NDArray[np.bool_]:
    targets = datum.loss_fn_inputs["target_tokens"]
    cells = np.ones(tuple(dimensions(targets)), np.bool_)
    if targets.is_sparse:
        indices = targets.sparse_crow_indices, targets.sparse_col_indices
        cells = (
            TensorData(np.ones(targets.values.size), "int64", targets.shape, *indices)
            .to_numpy()
            .astype(np.bool_)
        )
    if mask is None:
        return cells
    given: NDArray[np.bool_] = datum.loss_fn_inputs[mask].to_numpy() != 0
    return np.logical_and(cells, given if given.ndim == cells.ndim else given[:, None])


def select(parts: Sequence[Tensor], cells: Sequence[Tensor]) -> torch.Tensor:
    """Return what counts of all datums as one vector; ValueError when that is nothing."""
    import torch

    found = torch.cat([part[kept] for part, kept in zip(parts, cells, strict=True)])
    if found.numel() == 0:
        raise ValueError("no token counts in these datums")
    return found


def reduce(values: Tensor, reduction: Reduction) -> torch.Tensor:
    """Add up or average."""
    return values.sum() if reduction == "sum" else values.mean()


# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (torch is typed in part only)


in_ = attrs.validators.in_

# ---------------------------------------------------- divergences between rows, each a distribution

Divergence: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From log-probabilities, those of a reference, and which cells count: a value for each row."""

SMALLEST_PROBABILITY = 1e-10  # smaller ones add nothing
LARGEST_LOG_RATIO = 100.0


def spread(values: Tensor, kept: Tensor, cells: Tensor) -> torch.Tensor:
    """Add up the kept values of each row; rows in which no cell counts are left out."""
    return values.where(kept, values.new_zeros(())).sum(-1)[cells.any(-1)]


def divergence(logprobs: Tensor, others: Tensor, cells: Tensor) -> torch.Tensor:
    """Compute for each row KL(P | Q) = sum p (log p - log q)."""
    kept = cells & (logprobs.detach().exp() > SMALLEST_PROBABILITY)
    ours, theirs = (part.where(kept, part.new_zeros(())) for part in (logprobs, others))
    return spread(
        ours.exp() * (ours - theirs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO), kept, cells
    )


def reverse_divergence(logprobs: Tensor, others: Tensor, cells: Tensor) -> torch.Tensor:
    return divergence(others, logprobs, cells)


def symmetric_divergence(logprobs: Tensor, others: Tensor, cells: Tensor) -> torch.Tensor:
    return (divergence(logprobs, others, cells) + divergence(others, logprobs, cells)) / 2


def middle_divergence(logprobs: Tensor, others: Tensor, cells: Tensor) -> torch.Tensor:
    """Compute for each row the Jensen-Shannon divergence, by the distribution half-way between the
    two.
    """
    middle = ((logprobs.exp() + others.exp()) / 2).clamp(min=SMALLEST_PROBABILITY).log()
    return (divergence(logprobs, middle, cells) + divergence(others, middle, cells)) / 2


def compute_rows(
    function: Divergence, ours: Iterable[Tensor], theirs: Iterable[Tensor], cells: Iterable[Tensor]
) -> torch.Tensor:
    """Compute the rows of all datums; ValueError when there are none."""
    import torch

    rows = torch.cat([function(*one) for one in zip(ours, theirs, cells, strict=True)])
    if rows.numel() == 0:
        raise ValueError("no token counts in these datums")
    return rows


def summarize(rows: Tensor) -> dict[str, float]:
    found = rows.detach()
    return {"mean": float(found.mean()), "min": float(found.min()), "max": float(found.max())}


# ----------------------------------------------------------------------- distances from a reference

KLDirection: TypeAlias = Literal["forward", "reverse", "symmetric"]
Estimator: TypeAlias = Literal["k1", "k2", "k3"]
_DIRECTIONS: dict[str, Divergence] = {
    "forward": divergence,
    "reverse": reverse_divergence,
    "symmetric": symmetric_divergence,
}
_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda drift: drift,
    "k2": lambda drift: drift.square() / 2,
    "k3": lambda drift: drift.neg().exp() - 1 + drift,
}


def _check_reference(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not callable(value) and not isinstance(value, Sequence):
        raise TypeError(
            f"{attribute.name} must be the name of a loss input, a function or a "
            f"list of arrays, got {value!r}"
        )


@attrs.frozen
class _Compared:
    """A term that compares log-probabilities with a reference."""

    reference: Reference = attrs.field(validator=_check_reference)
    reduction: Reduction = attrs.field(default="mean", kw_only=True, validator=in_(REDUCTIONS))
    mask: str | None = attrs.field(default=None, kw_only=True)

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for datums that lack an input, or whose shape the term cannot use."""
        self._check_shape(data)
        check_mask(data, self.mask)
        check_reference(data, self.reference)

    def __call__(
        self, data: list[Datum], logprobs: list[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        self.check(data)
        values = self._compare(
            logprobs,
            read_reference(data, logprobs, self.reference),
            count_cells(data, self.mask),
        )
        return reduce(values, self.reduction), summarize(values)

    def _check_shape(self, data: Sequence[Datum]) -> None:
        raise NotImplementedError

    def _compare(
        self, logprobs: list[Tensor], references: list[Tensor], cells: list[Tensor]
    ) -> Tensor:
        """Compute the value of each token, row or datum."""
        raise NotImplementedError


@attrs.frozen
class KL(_Compared):
    """KL divergence from a reference, in nats per token.

    With targets ``[N, K]`` each row is a distribution, and the value is that of
    ``KL(P|Q) = sum p (log p - log q)``; terms with ``p`` below 1e-10 add nothing, and the
    difference of logarithms counts up to 100. With targets ``[N]``, one log-probability ``lp`` for
    each token beside the reference's ``ref``, the value is an estimate for tokens sampled from the
    model, with ``d = lp - ref``:

    - ``k1``: ``d``. For such tokens its gradient is 0 on average, so it reports but does not hold.
    - ``k2``: ``d² / 2``. On average its gradient is that of KL(model|reference).
    - ``k3``: ``exp(-d) - 1 + d``. Never negative, on average the divergence itself; on average its
      gradient is that of KL(reference|model).

    Attributes:
        reference: The name of the loss input with the reference's log-probabilities, a function of
            the datums that computes them, or a list with one array for each datum; each in the
            shape of ``target_tokens``.
        estimator: For targets ``[N]``; None is ``k3``.
        direction: For targets ``[N, K]``: ``forward`` is KL(model|reference), ``reverse``
            KL(reference|model), ``symmetric`` their mean; None is ``forward``.
        reduction: The ``"mean"`` over all counted tokens of all datums, or their ``"sum"``.
        mask: The loss input whose zeros are left out, such as ``"weights"``; None counts
            everything.

    Metrics: ``mean``, ``min`` and ``max`` of the tokens.
    """

    estimator: Estimator | None = attrs.field(
        default=None, kw_only=True, validator=in_((None, *_ESTIMATORS))
    )
    direction: KLDirection | None = attrs.field(
        default=None, kw_only=True, validator=in_((None, *_DIRECTIONS))
    )

    def _check_shape(self, data: Sequence[Datum]) -> None:
        if is_one_for_each_token(data):
            if self.direction is not None:
                raise ValueError(
                    "direction needs target_tokens of shape [N, K]; for [N] choose an estimator"
                )
        elif self.estimator is not None:
            raise ValueError(
                "estimator needs target_tokens of shape [N]; for [N, K] choose a direction"
            )

    def _compare(
        self, logprobs: list[Tensor], references: list[Tensor], cells: list[Tensor]
    ) -> Tensor:
        if logprobs[0].ndim == 1:
            drift: Tensor = select(logprobs, cells) - select(references, cells)
            return _ESTIMATORS[self.estimator or "k3"](drift)
        return compute_rows(_DIRECTIONS[self.direction or "forward"], logprobs, references, cells)


@attrs.frozen
class JS(_Compared):
    """Jensen-Shannon divergence from a reference: symmetric, and at most ln 2. Targets must be
    ``[N, K]``.

    Attributes:
        reference: As of :class:`KL`.
        reduction: The ``"mean"`` over all counted tokens of all datums, or their ``"sum"``.
        mask: The loss input whose zeros are left out; None counts everything.

    Metrics: ``mean``, ``min`` and ``max`` of the tokens.
    """

    def _check_shape(self, data: Sequence[Datum]) -> None:
        check_rows(data, "JS")

    def _compare(
        self, logprobs: list[Tensor], references: list[Tensor], cells: list[Tensor]
    ) -> Tensor:
        return compute_rows(middle_divergence, logprobs, references, cells)


def _cosine_distance(ours: Tensor, theirs: Tensor) -> torch.Tensor:
    import torch

    norms = [torch.linalg.vector_norm(part).clamp(min=1e-8) for part in (ours, theirs)]
    product: torch.Tensor = norms[0] * norms[1]
    return 1 - (ours * theirs).sum() / product


@attrs.frozen
class Consistency(_Compared):
    """Difference of the log-probabilities from those of a partner, such as the same text with
    another prompt.

    Attributes:
        reference: The partner's log-probabilities, as of :class:`KL`.
        metric: ``mse``, ``(a - b)²`` for each token; ``l1``, ``|a - b|``; ``cosine``,
            ``1 - a·b / (|a| |b|)`` for each datum; ``kl``, for targets ``[N, K]`` the mean of
            KL(a|b) and KL(b|a) for each row.
        reduction: The ``"mean"`` over all counted tokens (with ``cosine`` datums), or their
            ``"sum"``.
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

    def _compare(
        self, logprobs: list[Tensor], references: list[Tensor], cells: list[Tensor]
    ) -> Tensor:
        if self.metric == "kl":
            return compute_rows(symmetric_divergence, logprobs, references, cells)
        if self.metric == "cosine":
            import torch

            pairs = [
                (a[kept], b[kept])
                for a, b, kept in zip(logprobs, references, cells, strict=True)
                if kept.any()
            ]
            return torch.stack([_cosine_distance(*pair) for pair in pairs])
        offsets = select(logprobs, cells) - select(references, cells)
        return offsets.square() if self.metric == "mse" else offsets.abs()


# ------------------------------------------------------------------------------------------ entropy

SMALLEST_LOGPROB = -50.0  # smaller ones add nothing
SCARCELY_POSSIBLE = -1000.0  # the log-probability of what does not count, when rows are normalized


@attrs.frozen(kw_only=True)
class Entropy:
    """Entropy of the model in nats per token, to be raised or lowered.

    With targets ``[N, K]`` the entropy of a row is ``-sum p log p``, log-probabilities below -50
    left out. With targets ``[N]``, tokens that the model sampled, it is estimated by ``-lp``. On
    average over such tokens the derivative of ``-lp`` is 0, so by default (``estimator="score"``)
    the gradient is another, ``-lp`` times that of ``lp``, which on average is the entropy's.

    Attributes:
        mode: ``maximize`` makes the value minus the entropy, ``minimize`` the entropy.
        estimator: For targets ``[N]``: ``score``; ``mean``, whose gradient is the derivative of
            ``-lp``; None is ``score``.
        temperature: For targets ``[N, K]``: what log-probabilities are divided by and then
            normalized, unless it is 1.
        normalize: For targets ``[N, K]``: whether to divide by the largest possible entropy, the
            logarithm of the candidates.
        reduction: The ``"mean"`` over all counted tokens of all datums, or their ``"sum"``.
        mask: The loss input whose zeros are left out; None counts everything.

    Metrics: ``mean``, ``min`` and ``max`` of the entropy of the tokens.
    """

    mode: Literal["maximize", "minimize"] = attrs.field(
        default="minimize", validator=in_(("maximize", "minimize"))
    )
    estimator: Literal["score", "mean"] | None = attrs.field(
        default=None, validator=in_((None, "score", "mean"))
    )
    temperature: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    normalize: bool = False
    reduction: Reduction = attrs.field(default="mean", validator=in_(REDUCTIONS))
    mask: str | None = None

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for datums that lack the mask, and for an option that their shape has no
        use for.
        """
        if not is_one_for_each_token(data):
            if self.estimator is not None:
                raise ValueError("estimator needs target_tokens of shape [N]")
        elif self.temperature != 1.0 or self.normalize:
            raise ValueError("temperature and normalize need target_tokens of shape [N, K]")
        check_mask(data, self.mask)

    def __call__(
        self, data: list[Datum], logprobs: list[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        import torch

        self.check(data)
        cells = count_cells(data, self.mask)
        if is_one_for_each_token(data):
            values = self._estimate(select(logprobs, cells))
        else:
            values = torch.cat([self._compute(*one) for one in zip(logprobs, cells, strict=True)])
        value = reduce(values, self.reduction)
        return value if self.mode == "minimize" else -value, summarize(values)

    def _estimate(self, logprobs: Tensor) -> torch.Tensor:
        if self.estimator == "mean":
            return -logprobs
        fixed = logprobs.detach()
        return -fixed - fixed * (logprobs - fixed)  # the value of -lp, with the gradient -lp for lp

    def _compute(self, logprobs: Tensor, cells: Tensor) -> torch.Tensor:
        """Compute the entropy of each row."""
        if self.temperature != 1.0:
            scaled = (logprobs / self.temperature).masked_fill(~cells, SCARCELY_POSSIBLE)
            logprobs = scaled - scaled.logsumexp(-1, keepdim=True)
        kept = cells & (logprobs.detach() > SMALLEST_LOGPROB)
        ours = logprobs.where(kept, logprobs.new_zeros(()))
        rows = spread(-ours.exp() * ours, kept, cells)
        if self.normalize:
            # a row of one candidate has no entropy
            rows = rows / cells.sum(-1)[cells.any(-1)].clamp(min=2).to(rows).log()
        return rows


# -------------------------------------------------------------------------------------------- norms

Target: TypeAlias = Literal["logprobs", "probs"] | LossInput
"""The log-probabilities, the probabilities, or an input of the datums (which nothing can train: it
is only reported).
"""


def _check_target(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in ("logprobs", "probs") and not isinstance(value, LossInput):
        raise ValueError(f"target must be 'logprobs', 'probs' or a LossInput, got {value!r}")


def _check_center(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and value != "mean" and not isinstance(value, (int, float, LossInput)):
        raise ValueError(f"center must be None, 'mean', a number or a LossInput, got {value!r}")


@attrs.frozen(kw_only=True)
class _Elementwise:
    """What L1, L2 and ElasticNet have in common: what they look at, and how values become one."""

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
            logprobs = [
                read_input(datum, name, part) for datum, part in zip(data, logprobs, strict=True)
            ]
        found = select(logprobs, count_cells(data, self.mask))
        return found.exp() if self.target == "probs" else found


@attrs.frozen(kw_only=True)
class L1(_Elementwise):
    """Sum of absolute values, ``sum |x|``, which drives values to 0 one by one.

    Attributes:
        target: What ``x`` is: ``"logprobs"``, ``"probs"`` or a :class:`LossInput`.
        reduction: ``"sum"`` over all counted values of all datums, or their ``"mean"``.
        mask: The loss input whose zeros are left out, such as ``"weights"``; None counts
            everything.

    Metrics: ``mean``, the mean absolute value.
    """

    def __call__(
        self, data: list[Datum], logprobs: list[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
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
        clip: The largest distance that counts; values further off have no gradient. None cuts
            nothing.
        center: What is subtracted: a number, ``"mean"`` (of all counted values), a
            :class:`LossInput`, or None for 0.

    Metrics: ``mean``, the mean of ``x²``; ``center`` where that is one number.
    """

    clip: float | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.gt(0))
    )
    center: float | Literal["mean"] | LossInput | None = attrs.field(
        default=None, validator=_check_center
    )

    def __call__(
        self, data: list[Datum], logprobs: list[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
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
            parts = [
                read_input(datum, name, part) for datum, part in zip(data, logprobs, strict=True)
            ]
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

    l1_ratio: float = attrs.field(
        default=0.5, validator=[attrs.validators.ge(0), attrs.validators.le(1)]
    )

    def __call__(
        self, data: list[Datum], logprobs: list[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        values = self._select(data, logprobs)
        one, two = (
            reduce(values.abs(), self.reduction),
            reduce(values.square(), self.reduction),
        )
        value = self.l1_ratio * one + (1.0 - self.l1_ratio) * two
        return value, {"l1": float(one.detach()), "l2": float(two.detach())}


# ------------------------------------------------------------------------------- rows and gradients

SHORTEST = 1e-8  # a row shorter than this is not made longer


@attrs.frozen(kw_only=True)
class Orthogonality:
    """Penalty on similar rows in a matrix of log-probabilities.

    With targets ``[N, K]`` the matrix M has, by ``axis``: ``rows``, a row for each token of all
    datums, with its K candidates; ``sequence``, a row for each position, with the candidates of all
    datums, which must be equally long; ``vocabulary``, a row for each candidate. With targets
    ``[N]``, all equally long, there is a row for each datum, with ``sequence`` or ``vocabulary``
    for each position. With G = M Mᵀ and n rows the value is:

    - ``soft``: the squares of G off its diagonal, added up;
    - ``hard``: the squares of G - I;
    - ``spectral``: ``soft`` and (trace of G - n)².

    Attributes:
        mode: Which of these.
        normalize: Whether rows are made one long first.
        axis: What a row is.

    Metrics: ``rows``, their number; ``trace`` of G.
    """

    mode: Literal["soft", "hard", "spectral"] = attrs.field(
        default="soft", validator=in_(("soft", "hard", "spectral"))
    )
    normalize: bool = True
    axis: Literal["rows", "sequence", "vocabulary"] = attrs.field(
        default="rows", validator=in_(("rows", "sequence", "vocabulary"))
    )

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for datums whose log-probabilities make no matrix."""
        shapes = [dimensions(datum.loss_fn_inputs["target_tokens"]) for datum in data]
        shared = (
            slice(None)
            if is_one_for_each_token(data)
            else slice(0, 1)
            if self.axis == "sequence"
            else slice(1, 2)
        )
        for index, shape in enumerate(shapes):
            if tuple(shape[shared]) != tuple(shapes[0][shared]):
                raise ValueError(
                    f"data[{index}] has target_tokens of shape {list(shape)}, data[0] "
                    f"{list(shapes[0])}: not a matrix"
                )

    def __call__(
        self, data: list[Datum], logprobs: list[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        import torch

        self.check(data)
        matrix = self._matrix(logprobs).double()
        if self.normalize:
            matrix = matrix / torch.linalg.vector_norm(matrix, dim=1, keepdim=True).clamp(
                min=SHORTEST
            )
        count, width = matrix.shape
        # their squares add up to the same
        gram = matrix @ matrix.T if count <= width else matrix.T @ matrix
        diagonal = matrix.square().sum(1)
        value = gram.square().sum() - diagonal.square().sum()
        if self.mode == "hard":
            value = value + (diagonal - 1).square().sum()
        elif self.mode == "spectral":
            value = value + (diagonal.sum() - count).square()
        return value, {"rows": float(count), "trace": float(diagonal.detach().sum())}

    def _matrix(self, logprobs: list[Tensor]) -> torch.Tensor:
        import torch

        if logprobs[0].ndim == 1:
            stacked = torch.stack(logprobs)
            return stacked if self.axis == "rows" else stacked.T
        if self.axis == "sequence":
            return torch.cat(logprobs, dim=1)
        rows = torch.cat(logprobs)
        return rows if self.axis == "rows" else rows.T


@attrs.frozen
class GradientPenalty:
    """Penalty on steep losses: ``(|g| - target_norm)²``, where g is its gradient with respect to
    all log-probabilities.

    Attributes:
        loss_fn: A custom loss in torch, whose second derivatives must exist.
        mode: Where the gradient is taken: ``output``, at the log-probabilities; ``interpolated``,
            at a point on the line from them to the reference, drawn again for each step.
        target_norm: The length the gradient should have.
        reference: The other end of that line, as of :class:`KL`; needed by ``interpolated``.
        seed: Makes the points repeatable; None draws others each time.

    Metrics: ``norm``, the length of g; ``share``, how much of the point is the log-probabilities.
    """

    loss_fn: Callable[[list[Datum], list[Tensor]], tuple[Tensor, dict[str, float]]] = attrs.field(
        validator=attrs.validators.is_callable()
    )
    mode: Literal["output", "interpolated"] = attrs.field(
        default="output", kw_only=True, validator=in_(("output", "interpolated"))
    )
    target_norm: float = attrs.field(default=1.0, kw_only=True, validator=attrs.validators.ge(0))
    reference: Reference | None = attrs.field(default=None, kw_only=True)
    seed: int | None = attrs.field(default=None, kw_only=True)
    _random: np.random.Generator = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if (self.mode == "interpolated") != (self.reference is not None):
            raise ValueError("mode='interpolated' and a reference go together")
        object.__setattr__(self, "_random", np.random.default_rng(self.seed))

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for datums that lack the reference."""
        if self.reference is not None:
            check_reference(data, self.reference)

    def __call__(
        self, data: list[Datum], logprobs: list[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        share, points = self._points(data, logprobs)
        returned: Any = self.loss_fn(data, points)
        norm = _gradient_norm(returned[0] if isinstance(returned, tuple) else returned, points)
        return (norm - self.target_norm).square(), {"norm": float(norm.detach()), "share": share}

    def _points(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[float, list[Tensor]]:
        if self.reference is None:
            return 1.0, logprobs
        share = float(self._random.random())
        others = read_reference(data, logprobs, self.reference)
        return share, [
            share * part + (1.0 - share) * other
            for part, other in zip(logprobs, others, strict=True)
        ]


def _gradient_norm(loss: Tensor, points: list[Tensor]) -> torch.Tensor:
    import torch

    if not loss.requires_grad:
        raise ValueError(
            "loss_fn does not depend on the log-probabilities, so it has no gradient to penalize"
        )
    found = torch.autograd.grad(loss, points, create_graph=True, allow_unused=True)
    slopes: list[torch.Tensor | None] = list(found)
    norm: torch.Tensor = torch.linalg.vector_norm(
        torch.cat([one.flatten() for one in slopes if one is not None])
    )
    return norm
