"""The memory of one evaluation of a traced loss: what a result takes is predicted before torch
computes it.

Torch tells a dispatch mode of every operation, those inside of its functions and of the backward
pass too. The sizes of the results come from the same operation on meta tensors, which have shapes
and no content.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false
# (torch is typed in part only)

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinker.local.engines.protocol import EngineError
from tinker.local.losses.evaluation import flatten

# of all values of one evaluation that live at once, with what the backward pass needs of them
MAX_NBYTES = 2**29
MAX_TENSORS = 2**17  # that one evaluation makes, of whatever size: each costs about a kilobyte
TENSOR_NBYTES = 1024
FEW_CELLS = 2**20  # operations whose results cannot have more than these are not predicted


class LossMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses, while it is entered, each operation whose results would exceed the limits.
    EngineError says by how much.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made = 0
        self._held: WeakSet[torch.UntypedStorage] = WeakSet()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, so torch need not load its compiler to leave this out."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        self._admit(func, args, options)
        result = func(*args, **options)
        storages = (tensor.untyped_storage() for tensor in _tensors(result))
        # others count by their number only
        self._held.update(one for one in storages if one.nbytes() >= TENSOR_NBYTES)
        return result

    def _admit(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> None:
        """Raise EngineError if the results of an operation would be too many or too large."""
        device = options.get("device")
        if device is not None and torch.device(device).type != "cpu":
            raise EngineError(f"a tensor on the device {device}; a loss computes on the CPU")
        name, operands = (
            func._schema.name.removeprefix("aten::"),
            _tensors(*args, *options.values()),
        )
        self._made += _count_parts(name, args)
        if self._made > MAX_TENSORS:
            raise EngineError(f"the loss makes more than {MAX_TENSORS} tensors from one datum")
        bound = BOUNDS.get(name)
        if bound is None and _may_have(args, options, operands) <= FEW_CELLS:
            return
        copies = sum(map(_nbytes, operands))
        if bound is not None:
            self._require(bound(*args, **options) + copies)
        elif not func._schema.is_mutable:
            views = [one.alias_info is not None for one in func._schema.returns]
            results = _predict(func, args, options)
            for tensor in _tensors(results):
                self._require(_nbytes(tensor))
            if not any(views):
                self._require(sum(map(_nbytes, _tensors(results))) + copies)

    def _require(self, nbytes: int) -> None:
        held = sum(one.nbytes() for one in self._held)
        if held + nbytes > MAX_NBYTES:
            beside = f", beside the {held} that it holds" if held else ""
            raise EngineError(
                f"it takes {nbytes} bytes{beside}; a loss may take {MAX_NBYTES} for one datum"
            )


def _tensors(*values: object) -> list[torch.Tensor]:
    return [one for one in flatten(values) if isinstance(one, torch.Tensor)]


def _nbytes(tensor: torch.Tensor) -> int:
    """Return what a tensor takes when its cells are written out, as those of an expanded one may
    be.
    """
    return tensor.numel() * tensor.element_size()


def _may_have(
    args: Sequence[Any], options: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> int:
    """Return how many cells a result has at most: those of all operands, or the square of one,
    times all numbers.
    """
    cells = [max(1, tensor.numel()) for tensor in operands]
    return math.prod(cells * 2 if len(cells) == 1 else cells) * math.prod(
        max(1, abs(n)) for n in flatten((*args, *options.values())) if isinstance(n, int)
    )


def _count_parts(name: str, args: Sequence[Any]) -> int:
    """Return how many tensors an operation makes."""
    if name == "unbind":
        return args[0].size(args[1] if len(args) > 1 else 0) if args[0].ndim else 1
    if name in ("split", "unsafe_split", "split_with_sizes") and args[0].ndim:
        return (
            len(args[1]) if isinstance(args[1], list) else max(args[0].shape) // max(1, args[1]) + 1
        )
    return 1


def _predict(func: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return the results of an operation without their content."""
    given = {name: _to_meta(value) for name, value in options.items()}
    if any(argument.name == "device" for argument in func._schema.arguments):
        given["device"] = torch.device("meta")
    return func(*(_to_meta(value) for value in args), **given)


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_to_meta, cast("Sequence[Any]", value)))
    return value


def _measure_bincount(
    values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> int:
    return 8 * max(minlength, int(values.max()) + 1 if values.numel() else 0)


def _measure_index(values: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int:
    """Return the size of ``values[indices]``, in which a mask stands for the places where it is
    true.
    """
    places: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(None if index is None else _to_meta(index))
        else:
            places += index.ndim * [
                torch.empty(int(index.count_nonzero()), dtype=torch.int64, device="meta")
            ]
    taken = torch.ops.aten.index.Tensor(_to_meta(values), places)
    return _nbytes(taken) + sum(map(_nbytes, _tensors(places)))


def _measure_broadcast(*operands: Any, **_: Any) -> int:
    """Return the size of operands that are compared cell by cell."""
    cells: torch.Size = torch.broadcast_shapes(*(one.shape for one in _tensors(*operands)))  # type: ignore[no-untyped-call]
    return 2 * 8 * math.prod(cells)


def _measure_unique(values: torch.Tensor, *_: Any, **__: Any) -> int:
    """Return the size of the values in order, with their places and counts; rows are tensors while
    they are compared.
    """
    return 4 * 8 * values.numel() + TENSOR_NBYTES * max(values.shape, default=1)


def _measure_nonzero(mask: torch.Tensor) -> int:
    return 8 * mask.ndim * mask.numel()


def _measure_repeats(repeats: torch.Tensor, *, output_size: int | None = None) -> int:
    return 8 * int(repeats.sum())


#: What operations take whose results depend on the content of their operands, or which make more
#: than their results.
BOUNDS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(
        ("_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive"), _measure_unique
    ),
    "allclose": _measure_broadcast,
    "bincount": _measure_bincount,
    "dist": _measure_broadcast,
    "index": _measure_index,
    "masked_select": _measure_broadcast,
    "nonzero": _measure_nonzero,
    "repeat_interleave": _measure_repeats,
}
