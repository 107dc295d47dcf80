"""The tables of docs/servers.md are what the last run of `nox -s compat -- servers` recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / "tests" / "compat" / "servers"
LEAST_STEPS = 70


@pytest.mark.parametrize("what", ["--check", "--notes"])
def test_the_tables_are_what_was_recorded(what: str) -> None:
    """Nobody edits the tables, and a note belongs to a step that does not pass on its server."""
    command = [sys.executable, str(SERVERS / "page.py"), what]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_every_recorded_run_took_the_whole_scenario() -> None:
    """A run counts when it has taken each of the steps, of which there are at least seventy."""
    runs = [json.loads(path.read_text()) for path in sorted((SERVERS / "recorded").glob("*.json"))]
    assert runs
    assert all(len(run["steps"]) >= LEAST_STEPS for run in runs)
