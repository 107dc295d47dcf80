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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests run as on a machine for which httpunk has no wheel."""
    parser.addoption("--without-httpunk", action="store_true", help="no client can import httpunk")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without httpunk, deselect the tests whose marker says that they are about it."""
    if config.getoption("--without-httpunk"):
        about_it = [item for item in items if item.get_closest_marker("httpunk")]
        config.hook.pytest_deselected(items=about_it)
        items[:] = [item for item in items if item not in about_it]


def _refuse_httpunk() -> None:
    """Let no client import httpunk from now on; the servers of the tests, which are another
    machine, have done so.
    """
    for name in ("connections", "engine_http"):
        sys.modules.pop(f"tinker._http.{name}", None)
    sys.modules.update(dict.fromkeys(["httpunk", "httpunk._httpunk"]))  # type: ignore[arg-type]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt what is imported by now from garbage collection: PyTorch and the tests are there until
    the end.
    """
    if session.config.getoption("--without-httpunk"):
        _refuse_httpunk()
    gc.collect()
    gc.freeze()
