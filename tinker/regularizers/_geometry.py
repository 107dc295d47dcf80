"""Terms about directions: rows of log-probabilities that should not resemble one another, and the length of a gradient."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

from tinker.custom_loss import Tensor
from tinker.regularizers._cells import Reference, check_reference, is_one_for_each_token, read_reference
from tinker.types.datum import Datum
from tinker.types.tensor_data import dimensions

if TYPE_CHECKING:
    import torch

in_ = attrs.validators.in_
SHORTEST = 1e-8  # a row shorter than this is not made longer


@attrs.frozen(kw_only=True)
class Orthogonality:
    """Penalty on similar rows in a matrix of log-probabilities.

    With targets ``[N, K]`` the matrix M has, by ``axis``: ``rows``, a row for each token of all datums, with its K candidates;
    ``sequence``, a row for each position, with the candidates of all datums, which must be equally long; ``vocabulary``, a row
    for each candidate. With targets ``[N]``, all equally long, there is a row for each datum, with ``sequence`` or
    ``vocabulary`` for each position. With G = M Mᵀ and n rows the value is:

    - ``soft``: the squares of G off its diagonal, added up;
    - ``hard``: the squares of G - I;
    - ``spectral``: ``soft`` and (trace of G - n)².

    Attributes:
        mode: Which of these.
        normalize: Whether rows are made one long first.
        axis: What a row is.

    Metrics: ``rows``, their number; ``trace`` of G.
    """

    mode: Literal["soft", "hard", "spectral"] = attrs.field(default="soft", validator=in_(("soft", "hard", "spectral")))
    normalize: bool = True
    axis: Literal["rows", "sequence", "vocabulary"] = attrs.field(
        default="rows", validator=in_(("rows", "sequence", "vocabulary"))
    )

    def check(self, data: Sequence[Datum]) -> None:
        """Raise ValueError for datums whose log-probabilities make no matrix."""
        shapes = [dimensions(datum.loss_fn_inputs["target_tokens"]) for datum in data]
        shared = slice(None) if is_one_for_each_token(data) else slice(0, 1) if self.axis == "sequence" else slice(1, 2)
        for index, shape in enumerate(shapes):
            if tuple(shape[shared]) != tuple(shapes[0][shared]):
                raise ValueError(
                    f"data[{index}] has target_tokens of shape {list(shape)}, data[0] {list(shapes[0])}: not a matrix"
                )

    def __call__(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the value and the metrics."""
        import torch

        self.check(data)
        matrix = self._matrix(logprobs).double()
        if self.normalize:
            matrix = matrix / torch.linalg.vector_norm(matrix, dim=1, keepdim=True).clamp(min=SHORTEST)
        count, width = matrix.shape
        gram = matrix @ matrix.T if count <= width else matrix.T @ matrix  # their squares add up to the same
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
    """Penalty on steep losses: ``(|g| - target_norm)²``, where g is its gradient with respect to all log-probabilities.

    Attributes:
        loss_fn: A custom loss in torch, whose second derivatives must exist.
        mode: Where the gradient is taken: ``output``, at the log-probabilities; ``interpolated``, at a point on the line from
            them to the reference, drawn again for each step.
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

    def __call__(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
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
        return share, [share * part + (1.0 - share) * other for part, other in zip(logprobs, others, strict=True)]


def _gradient_norm(loss: Tensor, points: list[Tensor]) -> torch.Tensor:
    import torch

    if not loss.requires_grad:
        raise ValueError("loss_fn does not depend on the log-probabilities, so it has no gradient to penalize")
    found = torch.autograd.grad(loss, points, create_graph=True, allow_unused=True)
    slopes: list[torch.Tensor | None] = list(found)
    norm: torch.Tensor = torch.linalg.vector_norm(torch.cat([one.flatten() for one in slopes if one is not None]))
    return norm
