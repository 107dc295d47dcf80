"""TensorData: a tensor that is sent to or received from the server. It is stored as a numpy array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from tinker._installation import install_command
from tinker.types._arrays import (
    NumericArray,
    TensorDtype,
    cast_exactly,
    is_torch,
    numpy_dtype,
    pack,
    rectangular,
    torch_to_numpy,
    wire_array,
)
from tinker.types._numpy import np
from tinker.types._values import FrozenValue

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


_SHOWN_VALUES = 8  # in a repr
_DESCRIPTION = ("dtype", "shape", "sparse_crow_indices", "sparse_col_indices")


class TensorData(FrozenValue):
    """A float32 or int64 tensor, dense or sparse (CSR, two-dimensional).

    Two TensorData are equal if their dtypes, shapes and values are equal.

    Args:
        data: The values, a list or an array, cast to ``dtype``. A sparse tensor takes only the stored values. None means no
            values.
        dtype: ``float32`` or ``int64``. Required.
        shape: The dimensions. None uses those of ``data``. Required for a sparse tensor.
        sparse_crow_indices: The start of each row in ``data``, and the end of the last row; None for a dense tensor.
        sparse_col_indices: The column of each value; None for a dense tensor.

    Raises:
        TypeError: ``dtype`` is missing.
        ValueError: The indices, the shape and the values do not match.

    >>> TensorData([1.0, 2.0], "float32").tolist()
    [1.0, 2.0]
    """

    __slots__ = ("__weakref__", "_numpy", "dtype", "shape", "sparse_col_indices", "sparse_crow_indices")
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
        """Create a dense tensor from a torch tensor, as :meth:`from_numpy` does. bfloat16 is converted to float32.

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
        """Create a CSR tensor from a two-dimensional torch tensor if that is smaller, otherwise a dense tensor.

        Args:
            tensor: The values.
            pad_value: The value that is not stored.

        Returns:
            A tensor of the same shape.
        """
        return cls.from_numpy_sparse(torch_to_numpy(tensor), pad_value)

    @classmethod
    def from_numpy_sparse(cls, array: NDArray[Any], pad_value: int = 0) -> TensorData:
        """Create a CSR tensor from a two-dimensional array if that is smaller, otherwise a dense tensor.

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
        """Return the stored values as a new flat list (for a sparse tensor, only the stored values)."""
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
            raise ImportError(f"PyTorch is not installed; to_torch needs it: {install_command('torch')}") from None
        array = self.to_numpy(pad_value)
        shared = array if array.flags.writeable else array.copy()
        return torch.from_numpy(shared)  # pyright: ignore[reportUnknownMemberType]

    def tolist(self, pad_value: float = 0) -> Any:  # the depth of the list is the rank of the tensor
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
        """Return the dtype, the shape, and the values of a short tensor or the first ones of a long one."""
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
        return TensorData, (self._numpy, self.dtype, self.shape, self.sparse_crow_indices, self.sparse_col_indices)

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorData:
        indices = self.sparse_crow_indices, self.sparse_col_indices
        return _set(TensorData.__new__(TensorData), self._numpy.copy(), self.shape, *indices)


def _reshape(array: NumericArray, shape: tuple[int, ...]) -> NumericArray:
    try:
        return array.reshape(shape)
    except ValueError:
        raise ValueError(f"a tensor of shape {list(shape)} has {math.prod(shape)} values, got {array.size}") from None


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
    """Return the tensor of an array that has one of the two dtypes and is writable; it is shared."""
    return _set(TensorData.__new__(TensorData), array, array.shape)


def _sparsify(array: NumericArray, pad_value: int) -> TensorData:
    rows, cols = array.shape
    kept = array != pad_value
    nnz = int(kept.sum())
    if (rows + 1) + 2 * nnz >= rows * cols:
        return wrap(array)
    crow = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    return _set(TensorData.__new__(TensorData), array[kept], (rows, cols), crow.tolist(), np.nonzero(kept)[1].tolist())


def _check_csr(values: NumericArray, shape: Sequence[int] | None, crow: Sequence[int], col: Sequence[int]) -> None:
    if shape is None or len(shape) != 2:
        raise ValueError("a sparse tensor needs a two-dimensional shape")
    rows, cols = shape
    increasing = all(a <= b for a, b in itertools.pairwise(crow))
    if len(crow) != rows + 1 or crow[0] != 0 or crow[-1] != len(col) or not increasing:
        raise ValueError(f"sparse_crow_indices must be {rows + 1} non-decreasing row starts from 0 to {len(col)}")
    if len(values) != len(col) or any(c < 0 or c >= cols for c in col):
        raise ValueError(f"sparse_col_indices must name a column below {cols} for each of the {len(values)} values")


def dimensions(tensor: TensorData) -> list[int]:
    """Return the shape; a dense tensor without one has the shape of its array."""
    return list(tensor.values.shape) if tensor.shape is None else tensor.shape


def wire_nbytes(tensor: TensorData) -> int:
    """Return the bytes of the values and indices in the protobuf form."""
    nbytes = tensor.values.nbytes
    if tensor.sparse_crow_indices is None:
        return nbytes
    return nbytes + 8 * (len(tensor.sparse_crow_indices) + len(tensor.sparse_col_indices or ()))
