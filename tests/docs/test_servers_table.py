"""The tables of docs/servers.md are what the last run of `nox -s compat -- servers` recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / "tests" / "compat" / "servers"
LEAST_STEPS = 70


def test_the_tables_are_what_was_recorded() -> None:
    """Nobody edits the tables, and no run is recorded without them."""
    checked = subprocess.run(
        [sys.executable, str(SERVERS / "page.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_every_recorded_run_took_the_whole_scenario() -> None:
    """A run counts when it has taken each of the steps, of which there are at least seventy."""
    runs = [json.loads(path.read_text()) for path in sorted((SERVERS / "recorded").glob("*.json"))]
    assert runs
    assert all(len(run["steps"]) >= LEAST_STEPS for run in runs)


def test_notes_are_of_steps_that_are_there() -> None:
    """A reason written by hand belongs to a server and a step that does not pass there."""
    checked = subprocess.run(
        [sys.executable, str(SERVERS / "page.py"), "--notes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
