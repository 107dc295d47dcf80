"""Convert lists, numpy arrays and torch tensors of users into numpy arrays of the two wire dtypes, once.

torch is never imported here: a torch tensor can only reach us from a process that has imported it.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeAlias, TypeGuard, cast

from tinker_wire import models

from tinker.types._numpy import np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

TensorDtype: TypeAlias = models.TensorDtype
NumericArray: TypeAlias = "NDArray[np.int64] | NDArray[np.float32]"
Int32Array: TypeAlias = "NDArray[np.int32]"

_SMALLEST_INT32, _LARGEST_INT32 = -(1 << 31), (1 << 31) - 1
LONGEST_SHOWN = 64  # tokens, in a repr


def numpy_dtype(dtype: TensorDtype) -> np.dtype[Any]:
    """Return the numpy dtype of a wire dtype; ValueError for any other name."""
    if isinstance(dtype, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        if dtype == "int64":
            return np.dtype(np.int64)
        if dtype == "float32":
            return np.dtype(np.float32)
    return _refuse_dtype(dtype)


def _refuse_dtype(dtype: Never) -> NoReturn:
    raise ValueError(f"dtype must be 'float32' or 'int64', got {dtype!r}")


def is_torch(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether ``value`` is a torch tensor, without importing torch, which another thread may be doing."""
    tensor: type[torch.Tensor] | None = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def torch_to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the tensor's values; shares memory with a contiguous CPU tensor. bfloat16 and half widen to float32."""
    import torch

    if tensor.requires_grad:
        raise RuntimeError("The tensor requires grad; pass tensor.detach()")
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.cpu().numpy()


def wire_array(array: NDArray[Any]) -> NumericArray:
    """Convert floats and masks (bool) to float32, and integers to int64; ValueError for anything else.

    An unsigned integer of 64 bits must fit into a signed one.
    """
    if array.dtype.kind == "f":
        return cast("NumericArray", array if array.dtype == np.float32 else array.astype(np.float32))
    if array.dtype.kind == "b":
        return array.astype(np.float32)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"integers must be below 2**63, got {array.max()}")
    if array.dtype.kind in "iu":
        return cast("NumericArray", array if array.dtype == np.int64 else array.astype(np.int64))
    raise ValueError(f"an array of {array.dtype} cannot be sent; use floats, integers or booleans")


def cast_exactly(what: str, array: NDArray[Any], dtype: TensorDtype | np.dtype[Any]) -> NDArray[Any]:
    """Convert an array to a dtype. Raises ValueError naming ``what`` if a number would lose its fraction."""
    if dtype == "int64" and array.dtype.kind == "f" and (changed := np.flatnonzero(array != np.trunc(array))).size:
        at = int(changed[0])
        raise ValueError(f"{what} must be integers, got {array.reshape(-1)[at]} at position {at}")
    return array.astype(dtype, copy=False)


_STRUCT_CODES = {"float32": "f", "int64": "q", "int32": "i"}


def pack(values: object, dtype: str) -> NDArray[Any] | None:
    """Return a flat list of plain numbers as an array, in half the time that numpy takes; None for anything else.

    Range and type are checked on the way: a float is not an integer, and a number too large for ``dtype`` is not taken.
    """
    if not isinstance(values, list):
        return None
    numbers = cast("list[object]", values)
    array = np.empty(len(numbers), dtype)
    try:
        struct.pack_into(f"{len(numbers)}{_STRUCT_CODES[dtype]}", array.data, 0, *numbers)
    except (struct.error, OverflowError, TypeError):
        return None
    return array


def rectangular(values: Sequence[Any], what: str) -> NDArray[Any]:
    """Return a list, nested or not, as an array; ValueError naming ``what`` when it is ragged or not numeric."""
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if (at := next((index for index, value in enumerate(values) if value is None), None)) is not None:
        advice = ": the first token of a prompt has no log-probability" if at == 0 and "logprobs" in what else ""
        raise ValueError(f"{what} must be numbers, got None at position {at}{advice}")
    if array.dtype.kind == "U":
        raise ValueError(f"{what} must be numbers, got text")
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{what} must be numbers, in rows of equal length")
    return array


def _read_tokens(tokens: object) -> NDArray[Any]:
    got = type(tokens).__name__
    if isinstance(tokens, Mapping):  # what tokenizers return when they are asked for more than ids
        raise ValueError(f"tokens must be a list of token ids, got {got}: take its ['input_ids'], or pass return_dict=False")
    if isinstance(tokens, str):
        raise ValueError("tokens must be a list of token ids, got str: use tokenizer.encode(text)")
    try:
        raw: NDArray[Any] = torch_to_numpy(tokens) if is_torch(tokens) else np.asarray(tokens)
    except ValueError:
        raise ValueError("tokens must be one list of token ids, got lists of different lengths") from None
    if raw.ndim == 0:
        raise ValueError(f"tokens must be a list of token ids, got {got}")
    return raw


def show_tokens(tokens: Int32Array) -> str:
    """Return token ids as text: all of a short array, the first and the last of a long one."""
    if len(tokens) <= LONGEST_SHOWN:
        return str(tokens.tolist())
    first, last = (", ".join(map(str, part.tolist())) for part in (tokens[:4], tokens[-2:]))
    return f"[{first}, ..., {last}], {len(tokens):,} tokens"


def token_array(tokens: object) -> Int32Array:
    """Return token ids as int32, from a sequence of integers, a numpy array or a torch tensor. ValueError otherwise."""
    if (quick := pack(tokens, "int32")) is not None:
        return quick
    raw = _read_tokens(tokens)
    if raw.ndim != 1:
        advice = ": of a batch of one, pass tokens[0]" if len(raw) == 1 else ""
        raise ValueError(f"tokens must be one-dimensional, got shape {list(raw.shape)}{advice}")
    if raw.size == 0:
        return np.empty(0, np.int32)
    if (at := next(_find_wrong_tokens(raw), None)) is not None:
        raise ValueError(f"tokens must be integers, got {raw.tolist()[at]!r} at position {at}")
    if raw.dtype.kind == "U":
        raw = np.asarray([int(token) for token in raw.tolist()])
    if raw.min() < _SMALLEST_INT32 or raw.max() > _LARGEST_INT32:
        at = int(((raw < _SMALLEST_INT32) | (raw > _LARGEST_INT32)).argmax())
        raise ValueError(f"tokens must fit in 32 bits, got {raw[at]} at position {at}")
    return raw.astype(np.int32)


def _find_wrong_tokens(array: NDArray[Any]) -> Iterator[int]:
    """Find the positions of values that are not integers. Integers may be written as floats or as text."""
    if array.dtype.kind == "f":
        return (int(at) for at in np.flatnonzero((array != np.trunc(array)) | np.isinf(array)))
    values: list[Any] = [] if array.dtype.kind in "iub" else array.tolist()
    if array.dtype.kind == "U":
        return (at for at, value in enumerate(values) if not value.strip().lstrip("-").isdecimal())
    return (at for at, value in enumerate(values) if not isinstance(value, (int, np.integer)))
