"""What every test may import: the generator of the bindings, which no wheel contains; and a garbage collector with little to look at."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last, so that the installed package is the one that is tested


def pytest_collection_finish() -> None:
    """Exempt what is imported by now from garbage collection: PyTorch and the tests are there until the end."""
    gc.collect()
    gc.freeze()
