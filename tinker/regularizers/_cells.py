"""What a term looks at: the log-probabilities that count, inputs of the datums, a reference; how
values become one.
"""

# pyright: reportUnknownMemberType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.custom_loss import Tensor
from tinker.types.datum import Datum
from tinker.types.tensor_data import TensorData, dimensions, is_torch

if TYPE_CHECKING:
    import torch

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
