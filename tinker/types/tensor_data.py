"""TensorData: a tensor that is sent to or received from the server. It is stored as
a numpy array.
"""

from __future__ import annotations

import itertools
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, NoReturn, TypeAlias, TypeGuard, cast

from tinker_wire import models

from tinker.types._values import FrozenValue, np

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
    """Return whether ``value`` is a torch tensor, without importing torch, which another thread may
    be doing.
    """
    tensor: type[torch.Tensor] | None = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def torch_to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the tensor's values; shares memory with a contiguous CPU tensor. bfloat16 and half
    widen to float32.
    """
    import torch

    if tensor.requires_grad:
        raise RuntimeError("The tensor requires grad; pass tensor.detach()")
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.cpu().numpy()


def wire_array(array: NDArray[Any]) -> NumericArray:
    """Convert floats and masks (bool) to float32, and integers to int64; ValueError for anything
    else.

    An unsigned integer of 64 bits must fit into a signed one.
    """
    if array.dtype.kind == "f":
        return cast(
            "NumericArray", array if array.dtype == np.float32 else array.astype(np.float32)
        )
    if array.dtype.kind == "b":
        return array.astype(np.float32)
    if (
        array.dtype.kind == "u"
        and array.dtype.itemsize == 8
        and array.size
        and array.max() > np.iinfo(np.int64).max
    ):
        raise ValueError(f"integers must be below 2**63, got {array.max()}")
    if array.dtype.kind in "iu":
        return cast("NumericArray", array if array.dtype == np.int64 else array.astype(np.int64))
    raise ValueError(f"an array of {array.dtype} cannot be sent; use floats, integers or booleans")


def cast_exactly(
    what: str, array: NDArray[Any], dtype: TensorDtype | np.dtype[Any]
) -> NDArray[Any]:
    """Convert an array to a dtype. Raises ValueError naming ``what`` if a number would lose its
    fraction.
    """
    if (
        dtype == "int64"
        and array.dtype.kind == "f"
        and (changed := np.flatnonzero(array != np.trunc(array))).size
    ):
        at = int(changed[0])
        raise ValueError(f"{what} must be integers, got {array.reshape(-1)[at]} at position {at}")
    return array.astype(dtype, copy=False)


_STRUCT_CODES = {"float32": "f", "int64": "q", "int32": "i"}


def pack(values: object, dtype: str) -> NDArray[Any] | None:
    """Return a flat list of plain numbers as an array, in half the time that numpy takes; None for
    anything else.

    Range and type are checked on the way: a float is not an integer, and a number too large for
    ``dtype`` is not taken.
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
    """Return a list, nested or not, as an array; ValueError naming ``what`` when it is ragged or
    not numeric.
    """
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.asarray(None)
    if (
        at := next((index for index, value in enumerate(values) if value is None), None)
    ) is not None:
        advice = (
            ": the first token of a prompt has no log-probability"
            if at == 0 and "logprobs" in what
            else ""
        )
        raise ValueError(f"{what} must be numbers, got None at position {at}{advice}")
    if array.dtype.kind == "U":
        raise ValueError(f"{what} must be numbers, got text")
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{what} must be numbers, in rows of equal length")
    return array


def _read_tokens(tokens: object) -> NDArray[Any]:
    got = type(tokens).__name__
    if isinstance(tokens, Mapping):  # what tokenizers return when they are asked for more than ids
        raise ValueError(
            f"tokens must be a list of token ids, got {got}: take its ['input_ids'], or pass "
            "return_dict=False"
        )
    if isinstance(tokens, str):
        raise ValueError("tokens must be a list of token ids, got str: use tokenizer.encode(text)")
    try:
        raw: NDArray[Any] = torch_to_numpy(tokens) if is_torch(tokens) else np.asarray(tokens)
    except ValueError:
        raise ValueError(
            "tokens must be one list of token ids, got lists of different lengths"
        ) from None
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
    """Return token ids as int32, from a sequence of integers, a numpy array or a torch tensor.
    ValueError otherwise.
    """
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
    """Find the positions of values that are not integers. Integers may be written as floats or as
    text.
    """
    if array.dtype.kind == "f":
        return (int(at) for at in np.flatnonzero((array != np.trunc(array)) | np.isinf(array)))
    values: list[Any] = [] if array.dtype.kind in "iub" else array.tolist()
    if array.dtype.kind == "U":
        return (at for at, value in enumerate(values) if not value.strip().lstrip("-").isdecimal())
    return (at for at, value in enumerate(values) if not isinstance(value, (int, np.integer)))


_SHOWN_VALUES = 8  # in a repr
_DESCRIPTION = ("dtype", "shape", "sparse_crow_indices", "sparse_col_indices")


class TensorData(FrozenValue):
    """A float32 or int64 tensor, dense or sparse (CSR, two-dimensional).

    Two TensorData are equal if their dtypes, shapes and values are equal.

    Args:
        data: The values, a list or an array, cast to ``dtype``. A sparse tensor takes only the
            stored values. None means no values.
        dtype: ``float32`` or ``int64``. Required.
        shape: The dimensions. None uses those of ``data``. Required for a sparse tensor.
        sparse_crow_indices: The start of each row in ``data``, and the end of the last row; None
            for a dense tensor.
        sparse_col_indices: The column of each value; None for a dense tensor.

    Raises:
        TypeError: ``dtype`` is missing.
        ValueError: The indices, the shape and the values do not match.

    >>> TensorData([1.0, 2.0], "float32").tolist()
    [1.0, 2.0]
    """

    __slots__ = (
        "__weakref__",
        "_numpy",
        "dtype",
        "shape",
        "sparse_col_indices",
        "sparse_crow_indices",
    )
    _numpy: NumericArray
    dtype: TensorDtype
    shape: list[int] | None
    sparse_crow_indices: list[int] | None
    sparse_col_indices: list[int] | None

    def __init__(
        self,
        data: Sequence[float] | NDArray[Any] | None = None,
        dtype: TensorDtype | None = None,
        shape: Sequence[int] | None = None,
        sparse_crow_indices: Sequence[int] | None = None,
        sparse_col_indices: Sequence[int] | None = None,
    ) -> None:
        if dtype is None:
            raise TypeError("TensorData needs a dtype: 'float32' or 'int64'")
        sparse = sparse_crow_indices is not None
        if sparse != (sparse_col_indices is not None):
            raise ValueError("pass both sparse_crow_indices and sparse_col_indices, or neither")
        array = _store(data, numpy_dtype(dtype))
        if sparse:
            array = array.reshape(-1)
            _check_csr(array, shape, sparse_crow_indices or (), sparse_col_indices or ())
        elif shape is not None:
            array = _reshape(array, tuple(shape))
        _set(self, array, shape, sparse_crow_indices, sparse_col_indices)

    @classmethod
    def from_numpy(cls, array: NDArray[Any]) -> TensorData:
        """Create a dense tensor from an array. Floats and booleans become float32, integers int64.

        Args:
            array: The values. A writable array that already has the dtype is shared, not copied.

        Returns:
            A tensor with the shape of the array.

        Raises:
            ValueError: The dtype is not numeric, or an unsigned value does not fit in int64.
        """
        values = wire_array(np.asarray(array))
        return wrap(values if values.flags.writeable else values.copy())

    @classmethod
    def from_torch(cls, tensor: torch.Tensor) -> TensorData:
        """Create a dense tensor from a torch tensor, as :meth:`from_numpy` does. bfloat16 is
        converted to float32.

        Args:
            tensor: The values. The memory of a contiguous CPU tensor is shared.

        Returns:
            A tensor of the same shape.

        Raises:
            TypeError: The argument is not a torch tensor.
            RuntimeError: The tensor requires grad.
            ValueError: The dtype is not numeric, or an unsigned value does not fit in int64.
        """
        if not is_torch(tensor):
            raise TypeError(f"from_torch takes a torch tensor, got {type(tensor).__name__}")
        return wrap(wire_array(torch_to_numpy(tensor)))

    @classmethod
    def from_torch_sparse(cls, tensor: torch.Tensor, pad_value: int = 0) -> TensorData:
        """Create a CSR tensor from a two-dimensional torch tensor if that is smaller, otherwise a
        dense tensor.

        Args:
            tensor: The values.
            pad_value: The value that is not stored.

        Returns:
            A tensor of the same shape.
        """
        return cls.from_numpy_sparse(torch_to_numpy(tensor), pad_value)

    @classmethod
    def from_numpy_sparse(cls, array: NDArray[Any], pad_value: int = 0) -> TensorData:
        """Create a CSR tensor from a two-dimensional array if that is smaller, otherwise a dense
        tensor.

        Args:
            array: The values.
            pad_value: The value that is not stored.

        Returns:
            A tensor of the same shape.
        """
        if isinstance(pad_value, bool):
            raise TypeError("pad_value must be an int")
        values = wire_array(array)
        return _sparsify(values, pad_value) if values.ndim == 2 else wrap(values)

    @property
    def data(self) -> list[float]:
        """Return the stored values as a new flat list (for a sparse tensor, only the stored
        values).
        """
        return cast("list[float]", self._numpy.reshape(-1).tolist())

    @property
    def values(self) -> NumericArray:
        """Return the stored array without a copy (for a sparse tensor, only the stored values)."""
        return self._numpy

    @property
    def is_sparse(self) -> bool:
        """Return whether the tensor is CSR."""
        return self.sparse_crow_indices is not None

    def to_numpy(self, pad_value: float = 0) -> NDArray[Any]:
        """Return the tensor as an array.

        Args:
            pad_value: The value of the missing entries of a sparse tensor.

        Returns:
            The stored array itself, not a copy; a new dense array for a sparse tensor.
        """
        if self.sparse_crow_indices is None or self.sparse_col_indices is None:
            return self._numpy
        assert self.shape is not None
        dense = np.full(tuple(self.shape), pad_value, self._numpy.dtype)
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.sparse_crow_indices))
        dense[rows, self.sparse_col_indices] = self._numpy
        return dense

    def to_torch(self, pad_value: float = 0) -> torch.Tensor:
        """Return the tensor as a torch tensor. It shares memory if the memory is writable.

        Args:
            pad_value: The value of the missing entries of a sparse tensor.

        Returns:
            A dense torch tensor.

        Raises:
            ImportError: torch is not installed.
        """
        try:
            import torch
        except ImportError:
            from tinker._basics.installation import install_command

            raise ImportError(
                f"PyTorch is not installed; to_torch needs it: {install_command('torch')}"
            ) from None
        array = self.to_numpy(pad_value)
        shared = array if array.flags.writeable else array.copy()
        return torch.from_numpy(shared)  # pyright: ignore[reportUnknownMemberType]

    # the depth of the list is the rank of the tensor
    def tolist(self, pad_value: float = 0) -> Any:
        """Return the values as nested lists, or as a number for a 0-dimensional tensor.

        Args:
            pad_value: The value of the missing entries of a sparse tensor.

        Returns:
            Lists with one level per dimension.
        """
        return self.to_numpy(pad_value).tolist()

    def _field_values(self) -> dict[str, Any]:
        return {"data": self.data, **{name: getattr(self, name) for name in _DESCRIPTION}}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorData):
            return NotImplemented
        alike = all(getattr(self, name) == getattr(other, name) for name in _DESCRIPTION)
        return alike and bool(np.array_equal(self._numpy, other._numpy))

    def __hash__(self) -> int:
        return hash((self.dtype, self._numpy.size))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return :meth:`to_numpy`, for numpy functions."""
        array = self.to_numpy()
        return array if dtype is None and not copy else np.array(array, dtype=dtype, copy=True)

    def __repr__(self) -> str:
        """Return the dtype, the shape, and the values of a short tensor or the first ones of a long
        one.
        """
        shown = ", ".join(f"{value:.6g}" for value in self.values.ravel()[:_SHOWN_VALUES].tolist())
        more = ", ..." if self.values.size > _SHOWN_VALUES else ""
        sparse = ", sparse" if self.is_sparse else ""
        return f"TensorData([{shown}{more}], {self.dtype}, shape={list(dimensions(self))}{sparse})"

    def __len__(self) -> int:
        """Return the size of the first dimension."""
        return len(self.to_numpy())

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the numbers, or in more dimensions over the rows, which are numpy arrays."""
        array = self.to_numpy()
        return iter(array.tolist() if array.ndim == 1 else array)

    def __getitem__(self, index: Any) -> Any:
        """Return the number at an index, or the numpy array at a slice or a row."""
        found = self.to_numpy()[index]
        return found.item() if isinstance(found, np.generic) else found

    def __reduce__(self) -> tuple[object, ...]:
        return TensorData, (
            self._numpy,
            self.dtype,
            self.shape,
            self.sparse_crow_indices,
            self.sparse_col_indices,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorData:
        indices = self.sparse_crow_indices, self.sparse_col_indices
        return _set(TensorData.__new__(TensorData), self._numpy.copy(), self.shape, *indices)


def _reshape(array: NumericArray, shape: tuple[int, ...]) -> NumericArray:
    try:
        return array.reshape(shape)
    except ValueError:
        raise ValueError(
            f"a tensor of shape {list(shape)} has {math.prod(shape)} values, got {array.size}"
        ) from None


def _store(data: Sequence[float] | NDArray[Any] | None, dtype: np.dtype[Any]) -> NumericArray:
    """Return a writable array of ``dtype``; an array that already is one is kept without a copy."""
    if is_torch(data):
        data = torch_to_numpy(data)
    if (quick := pack(data, dtype.name)) is not None:
        return quick
    try:
        raw = np.asarray([] if data is None else data)
        if raw.dtype.kind == "O":
            raise ValueError
        if raw.dtype.kind in "US":
            raw = raw.astype(dtype)  # numbers spelled as text are taken
    except ValueError:
        if isinstance(data, (list, tuple)):
            rectangular(data, "data")  # it says what is wrong
        got = f"an array of {data.dtype}" if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"data must be a list or an array of numbers, got {got}") from None
    array = cast_exactly("data", raw, dtype)
    return cast("NumericArray", array if array.flags.writeable else array.copy())


def _set(
    tensor: TensorData,
    array: NumericArray,
    shape: Sequence[int] | None,
    crow: Sequence[int] | None = None,
    col: Sequence[int] | None = None,
) -> TensorData:
    put = object.__setattr__
    put(tensor, "_numpy", array)
    put(tensor, "dtype", "float32" if array.dtype.kind == "f" else "int64")
    put(tensor, "shape", None if shape is None else list(shape))
    put(tensor, "sparse_crow_indices", None if crow is None else list(crow))
    put(tensor, "sparse_col_indices", None if col is None else list(col))
    return tensor


def wrap(array: NumericArray) -> TensorData:
    """Return the tensor of an array that has one of the two dtypes and is writable;
    it is shared.
    """
    return _set(TensorData.__new__(TensorData), array, array.shape)


def _sparsify(array: NumericArray, pad_value: int) -> TensorData:
    rows, cols = array.shape
    kept = array != pad_value
    nnz = int(kept.sum())
    if (rows + 1) + 2 * nnz >= rows * cols:
        return wrap(array)
    crow = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return _set(
        TensorData.__new__(TensorData),
        array[kept],
        (rows, cols),
        crow.tolist(),
        np.nonzero(kept)[1].tolist(),
    )


def _check_csr(
    values: NumericArray, shape: Sequence[int] | None, crow: Sequence[int], col: Sequence[int]
) -> None:
    if shape is None or len(shape) != 2:
        raise ValueError("a sparse tensor needs a two-dimensional shape")
    rows, cols = shape
    increasing = all(a <= b for a, b in itertools.pairwise(crow))
    if len(crow) != rows + 1 or crow[0] != 0 or crow[-1] != len(col) or not increasing:
        raise ValueError(
            f"sparse_crow_indices must be {rows + 1} non-decreasing row starts from 0 to {len(col)}"
        )
    if len(values) != len(col) or any(c < 0 or c >= cols for c in col):
        raise ValueError(
            f"sparse_col_indices must name a column below {cols} for each "
            f"of the {len(values)} values"
        )


def dimensions(tensor: TensorData) -> list[int]:
    """Return the shape; a dense tensor without one has the shape of its array."""
    return list(tensor.values.shape) if tensor.shape is None else tensor.shape


def wire_nbytes(tensor: TensorData) -> int:
    """Return the bytes of the values and indices in the protobuf form."""
    nbytes = tensor.values.nbytes
    if tensor.sparse_crow_indices is None:
        return nbytes
    return nbytes + 8 * (len(tensor.sparse_crow_indices) + len(tensor.sparse_col_indices or ()))
