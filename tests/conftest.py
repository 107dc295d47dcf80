"""What holds for every test: the generator can be imported, which no wheel contains; little garbage, few certificates."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path

import certifi
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last, so that the installed package is the one that is tested

END = "-----END CERTIFICATE-----\n"
FIRST_AUTHORITY = Path(certifi.where()).read_text(encoding="utf-8").partition(END)[0] + END


def pytest_configure(config: pytest.Config) -> None:
    """Let certifi have one authority: each client of httpx reads all that there are, and no test has a server of theirs."""
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    file = Path(folder.name) / "authority.pem"
    file.write_text(FIRST_AUTHORITY, encoding="utf-8")
    certifi.where = lambda: str(file)


def pytest_collection_finish() -> None:
    """Exempt what is imported by now from garbage collection: PyTorch and the tests are there until the end."""
    gc.collect()
    gc.freeze()
