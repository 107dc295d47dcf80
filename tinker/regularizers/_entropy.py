"""How spread out distributions are."""

# pyright: reportUnknownMemberType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import attrs

from tinker.custom_loss import Tensor
from tinker.regularizers._cells import REDUCTIONS, Reduction, check_mask, count_cells, is_one_for_each_token, reduce, select
from tinker.regularizers._rows import spread, summarize
from tinker.types.datum import Datum

if TYPE_CHECKING:
    import torch

SMALLEST_LOGPROB = -50.0  # smaller ones add nothing
SCARCELY_POSSIBLE = -1000.0  # the log-probability of what does not count, when rows are normalized
in_ = attrs.validators.in_


@attrs.frozen(kw_only=True)
class Entropy:
    """Entropy of the model in nats per token, to be raised or lowered.

    With targets ``[N, K]`` the entropy of a row is ``-sum p log p``, log-probabilities below -50 left out. With targets
    ``[N]``, tokens that the model sampled, it is estimated by ``-lp``. On average over such tokens the derivative of ``-lp`` is
    0, so by default (``estimator="score"``) the gradient is another, ``-lp`` times that of ``lp``, which on average is the
    entropy's.

    Attributes:
        mode: ``maximize`` makes the value minus the entropy, ``minimize`` the entropy.
        estimator: For targets ``[N]``: ``score``; ``mean``, whose gradient is the derivative of ``-lp``; None is ``score``.
        temperature: For targets ``[N, K]``: what log-probabilities are divided by and then normalized, unless it is 1.
        normalize: For targets ``[N, K]``: whether to divide by the largest possible entropy, the logarithm of the candidates.
        reduction: The ``"mean"`` over all counted tokens of all datums, or their ``"sum"``.
        mask: The loss input whose zeros are left out; None counts everything.

    Metrics: ``mean``, ``min`` and ``max`` of the entropy of the tokens.
    """

    mode: Literal["maximize", "minimize"] = attrs.field(default="minimize", validator=in_(("maximize", "minimize")))
    estimator: Literal["score", "mean"] | None = attrs.field(default=None, validator=in_((None, "score", "mean")))
    temperature: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    normalize: bool = False
    reduction: Reduction = attrs.field(default="mean", validator=in_(REDUCTIONS))
    mask: str | None = None

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for datums that lack the mask, and for an option that their shape has no use for."""
        if not is_one_for_each_token(data):
            if self.estimator is not None:
                raise ValueError("estimator needs target_tokens of shape [N]")
        elif self.temperature != 1.0 or self.normalize:
            raise ValueError("temperature and normalize need target_tokens of shape [N, K]")
        check_mask(data, self.mask)

    def __call__(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
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
            rows = rows / cells.sum(-1)[cells.any(-1)].clamp(min=2).to(rows).log()  # a row of one candidate has no entropy
        return rows
