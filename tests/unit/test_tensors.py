"""TensorData: owned and shared memory, sparse forms, and invalid values."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import numpy as np
import pytest

import tinker
from tinker.types import TensorData
from tinker.types.tensor_data import dimensions, wire_nbytes

IMPORTER = """
import sys, threading
import tinker

class Watched:
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            print(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Watched())
tinker.ModelInput.from_ints([1])
assert "numpy" in sys.modules
"""

INTERRUPTED = """
import sys, threading
from tinker.types._values import np

def interrupt(at):
    left = at
    def trace(frame, event, _):
        nonlocal left
        frame.f_trace_opcodes = True
        if event in ("line", "opcode") and frame.f_code.co_filename.endswith(("_values.py", "lazy.py", "threading.py")):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace
    sys.modules.pop("numpy", None)
    np.__dict__.clear()
    sys.settrace(trace)
    try:
        np.array
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False

at = 0
while interrupt(at):
    assert np.array is list
    at += 1
assert at > 10
print(len(threading.enumerate()))
"""


def frozen(values: Any) -> Any:
    array = np.asarray(values)
    array.flags.writeable = False
    return array


def test_torch_may_be_half_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread imports torch, lists and arrays are read as without it."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    datum = tinker.Datum(
        tinker.ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": np.ones(2)}
    )
    assert list(datum.loss_fn_inputs["weights"]) == [1.0, 1.0]


def test_memory_is_shared_where_it_may_be_written() -> None:
    """A writable array of the right type is shared, in and out; a read-only one is copied."""
    torch = pytest.importorskip("torch")
    mine = np.asarray([1.0, 2.0], np.float32)
    for tensor in (TensorData.from_numpy(mine), TensorData(mine, "float32")):
        assert np.shares_memory(tensor.to_numpy(), mine)
        assert np.shares_memory(tensor.to_torch().numpy(), mine)
    foreign = frozen(np.asarray([1.0, 2.0], np.float32))
    for tensor in (TensorData.from_numpy(foreign), TensorData(foreign, "float32")):
        assert not np.shares_memory(tensor.to_numpy(), foreign)
        tensor.to_torch().add_(1)
        assert foreign.tolist() == [1.0, 2.0]
    tensor = TensorData([1.0, 2.0], "float32")
    tensor.to_numpy().flags.writeable = False
    tensor.to_torch().mul_(0)
    assert tensor.tolist() == [1.0, 2.0]
    assert isinstance(tensor.to_torch(), torch.Tensor)


def test_copies_have_separate_memory() -> None:
    """A deep copy and a pickle are equal in everything and share no memory."""
    tensor = TensorData([5.0], "float32", [2, 3], [0, 1, 1], [2])
    for other in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
        assert not np.shares_memory(other.values, tensor.values)
        assert other.tolist() == tensor.tolist() == [[0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]
        assert (other.dtype, other.shape, other.sparse_crow_indices, other.sparse_col_indices) == (
            "float32",
            [2, 3],
            [0, 1, 1],
            [2],
        )


def test_values_cannot_be_set() -> None:
    """A tensor is frozen; its repr shows its values."""
    tensor = TensorData([1, 2], "int64", [2])
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        tensor.dtype = "float32"  # type: ignore[misc]
    assert repr(tensor) == "TensorData([1, 2], int64, shape=[2])"


def test_absent_cells_have_the_pad_value() -> None:
    """A sparse tensor is made dense with the pad value; its data are the listed values."""
    tensor = TensorData([7, 8, 9], "int64", [3, 2], [0, 1, 1, 3], [1, 0, 1])
    assert tensor.is_sparse
    assert tensor.tolist() == tensor.to_numpy().tolist() == [[0, 7], [0, 0], [8, 9]]
    assert tensor.tolist(-1) == [[-1, 7], [-1, -1], [8, 9]]
    assert tensor.data == [7, 8, 9]
    assert (wire_nbytes(tensor), dimensions(tensor)) == (8 * 3 + 8 * 4 + 8 * 3, [3, 2])
    dense = TensorData([[1.0, 2.0]], "float32")
    assert not dense.is_sparse
    assert (wire_nbytes(dense), dimensions(dense), dense.shape) == (8, [1, 2], None)


@pytest.mark.parametrize(
    ("kept", "sparse"), [(0, True), (1, True), (3, True), (4, False), (12, False)]
)
def test_tensors_are_sparse_where_that_is_smaller(kept: int, sparse: bool) -> None:
    """The size of row starts, columns and values is compared with that of the whole table."""
    table = np.zeros((3, 4), np.float32)
    table.reshape(-1)[:kept] = np.arange(1, kept + 1)
    tensor = TensorData.from_numpy_sparse(table)
    assert tensor.is_sparse is sparse
    assert tensor.tolist() == table.tolist()
    assert tensor.dtype == "float32"


def test_padding_is_left_out() -> None:
    """Another pad value, integers and other ranks keep their values."""
    table = np.full((2, 10), -1, np.int64)
    table[1, 3] = 5
    tensor = TensorData.from_numpy_sparse(table, -1)
    assert (tensor.sparse_crow_indices, tensor.sparse_col_indices, tensor.data) == (
        [0, 0, 1],
        [3],
        [5],
    )
    assert tensor.dtype == "int64"
    assert tensor.to_numpy(-1).tolist() == table.tolist()
    assert not TensorData.from_numpy_sparse(np.zeros(100)).is_sparse
    with pytest.raises(TypeError, match="pad_value"):
        TensorData.from_numpy_sparse(table, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ([1.0], "float32", None, [0, 1], [0]),
        ([1.0], "float32", [1], [0, 1], [0]),
        ([1.0], "float32", [1, 2], [0, 1], None),
        ([1.0], "float32", [1, 2], None, [0]),
        ([1.0], "float32", [1, 2], [0, 1, 1], [0]),
        ([1.0], "float32", [1, 2], [1, 1], [0]),
        ([1.0], "float32", [1, 2], [0, 0], [0]),
        ([1.0, 2.0], "float32", [3, 2], [0, 2, 1, 2], [0, 1]),
        ([1.0, 2.0], "float32", [1, 2], [0, 1], [0]),
        ([1.0], "float32", [1, 2], [0, 1], [2]),
        ([1.0], "float32", [1, 2], [0, 1], [-1]),
    ],
)
def test_invalid_sparse_tensors(arguments: Any) -> None:
    """Indices that do not fit the shape or each other are refused; the edges are accepted."""
    with pytest.raises(ValueError, match=r"sparse|shape"):
        TensorData(*arguments)
    assert TensorData([1.0, 2.0], "float32", [3, 2], [0, 1, 1, 2], [1, 0]).tolist() == [
        [0, 1],
        [0, 0],
        [2, 0],
    ]


def test_a_type_is_needed() -> None:
    """The two types of the wire have names; a missing or other type is refused."""
    with pytest.raises(TypeError, match="needs a dtype: 'float32' or 'int64'"):
        TensorData([1.0])
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'int64', got"):
        TensorData([1.0], "float64")  # type: ignore[arg-type]
    assert TensorData(None, "int64").tolist() == []
    assert TensorData([1, 2, 3, 4], "int64", [2, 2]).tolist() == [[1, 2], [3, 4]]
    assert TensorData([1, 2], "float32").values.dtype == np.float32
    assert TensorData([1.0], "int64").data == [1]
    assert TensorData.from_numpy(np.asarray([1], np.int16)).dtype == "int64"
    for unknown in (np.asarray([1j]), np.asarray([2**63], np.uint64)):
        with pytest.raises(ValueError, match=r"cannot be sent|must be below 2\*\*63"):
            TensorData.from_numpy(unknown)


def test_torch_gets_the_same_cells() -> None:
    """A sparse tensor is dense for torch, with zero by default."""
    torch = pytest.importorskip("torch")
    half = torch.tensor([1.5], dtype=torch.bfloat16)
    assert TensorData.from_torch(half).tolist() == [1.5]
    tensor = TensorData([[7.0, 8.0]], "float32", [2, 2], [0, 0, 2], [0, 1])
    assert tensor.values.shape == (2,)
    assert tensor.to_torch().tolist() == [[0.0, 0.0], [7.0, 8.0]]
    assert tensor.to_torch(-1).tolist() == [[-1.0, -1.0], [7.0, 8.0]]


def test_tensors_are_compared_by_value() -> None:
    """Tensors compare by dtype, shape, indices and values, and equal ones have one hash."""
    one, same = (TensorData.from_numpy(np.asarray([[1.0, 2.0]], np.float32)) for _ in range(2))
    assert one == same
    assert hash(one) == hash(same)
    others = [
        TensorData([1.0, 2.0], "float32"),
        TensorData([1, 2], "int64", [1, 2]),
        TensorData([1.0, 3.0], "float32", [1, 2]),
    ]
    assert all(one != other for other in others)
    assert one != "text"
    sparse = [TensorData([1.0], "float32", [1, 2], [0, 1], [column]) for column in (0, 1)]
    assert sparse[0] != sparse[1]


def test_numpy_takes_a_tensor() -> None:
    """`np.asarray` returns the dense array, in another dtype on request."""
    tensor = TensorData([5.0], "float32", [1, 2], [0, 1], [1])
    assert np.asarray(tensor).tolist() == [[0.0, 5.0]]
    assert np.asarray(tensor, np.int64).dtype == np.int64
    dense = TensorData.from_numpy(np.zeros(3, np.float32))
    assert np.asarray(dense) is dense.values
    assert np.array(dense) is not dense.values


def test_errors_of_invalid_tensors() -> None:
    """A wrong shape, a list for a torch tensor and floats for integers are readable errors."""
    with pytest.raises(ValueError, match=r"a tensor of shape \[3\] has 3 values, got 2"):
        TensorData([1, 2], "int64", [3])
    with pytest.raises(ValueError, match=r"^data must be integers, got 1\.7 at position 0"):
        TensorData([1.7], "int64")
    with pytest.raises(TypeError, match="from_torch takes a torch tensor, got list"):
        TensorData.from_torch([1, 2])  # type: ignore[arg-type]
    tokens = tinker.ModelInput.from_ints([1, 2])
    with pytest.raises(
        ValueError, match=r"\['target_tokens'\] must be integers, got 2\.5 at position 1"
    ):
        tinker.Datum(tokens, {"target_tokens": [1.0, 2.5]})
    assert tinker.Datum(tokens, {"target_tokens": [1.0, 2.0]}).loss_fn_inputs[
        "target_tokens"
    ].data == [1, 2]


def test_ctrl_c_does_not_reach_the_import_of_numpy() -> None:
    """The first array imports numpy on another thread, out of the reach of Ctrl-C."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False"]


def test_an_interrupt_anywhere_in_the_import_of_numpy_leaves_nothing_behind(tmp_path: Path) -> None:
    """Wherever Ctrl-C interrupts the first use of numpy, the next has it, without a thread left."""
    (tmp_path / "numpy.py").write_text("array = list")
    program = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(
        program,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["1"]
