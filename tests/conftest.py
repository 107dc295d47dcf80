"""What holds for every test: the generator can be imported, which no wheel contains; little
garbage, few certificates.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path

import certifi
import pytest

# last, so that the installed package is the one that is tested
sys.path.append(str(Path(__file__).resolve().parents[1]))

END = "-----END CERTIFICATE-----\n"


def pytest_configure(config: pytest.Config) -> None:
    """Trust one authority: each client of httpx reads all of the system's, for 30 ms, and no test
    has a server of theirs.
    """
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    file = Path(folder.name) / "authority.pem"
    file.write_text(
        Path(certifi.where()).read_text(encoding="utf-8").partition(END)[0] + END, encoding="utf-8"
    )
    os.environ["SSL_CERT_FILE"] = str(file)


def pytest_collection_finish() -> None:
    """Exempt what is imported by now from garbage collection: PyTorch and the tests are there until
    the end.
    """
    gc.collect()
    gc.freeze()
