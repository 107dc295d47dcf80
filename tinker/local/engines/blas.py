"""The threads of numpy's matrix products: one, because those of OpenBLAS spin while they wait for one another.

On a machine whose cores are busy, they take the cores from each other: the quickstart then takes five times as long with two.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

PREFIXES = {"scipy_openblas": "64_", "openblas": ""}  # of the functions, and their endings: in wheels of numpy, and elsewhere


@contextmanager
def compute_in_one_thread() -> Generator[None]:
    """Compute matrix products in the thread that asks for them, inside the block; without OpenBLAS as the library likes."""
    get, put = _find_functions()
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@functools.cache
def _find_functions() -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return what gets and sets the number of threads."""
    for file in Path(np.__file__).parents[1].glob("numpy.libs/*openblas*"):
        library = ctypes.CDLL(str(file))
        for prefix, ending in PREFIXES.items():
            names = [f"{prefix}_{verb}_num_threads{ending}" for verb in ("get", "set")]
            if all(hasattr(library, name) for name in names):
                return getattr(library, names[0]), getattr(library, names[1])
    return lambda: 1, lambda count: None
