"""The records of `nox -s compat -- servers`: one scenario for all, no paths of a machine, and the page made
from them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SERVERS = Path(__file__).parent / "servers"
PLACES = re.compile(r"/(?:tmp|root|home|Users|work)/|\.nox/")


@pytest.mark.parametrize("option", ["--check", "--notes"])
def test_the_page_is_as_recorded(option: str) -> None:
    """Every run is of this tree's scenario and on the page, and no note is idle."""
    done = subprocess.run(
        [sys.executable, str(SERVERS / "page.py"), option],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path",
    [
        *(SERVERS / "recorded").glob("*.json"),
        SERVERS / "own_tests.json",
        *(SERVERS.parents[2] / "docs/conformance").iterdir(),
    ],
    ids=lambda path: path.name,
)
def test_no_record_names_a_place_of_a_machine(path: Path) -> None:
    """What servers say of their own files is recorded without folders of a machine."""
    assert PLACES.findall(path.read_text()) == []
