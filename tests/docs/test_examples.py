"""Every script of examples/, run as a user would run it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tinker._loop import loop_thread

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ELSEWHERE = {"quickstart"}  # nox sessions of its own run it to the end
SECONDS = 120


def scripts() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in ELSEWHERE)


def in_this_process(script: Path) -> None:
    """Importing torch once for all of them saves most of the time."""
    runpy.run_path(str(script), run_name="__main__")


def in_a_process_of_its_own(script: Path) -> None:
    """For a script that other processes import as their main module."""
    done = subprocess.run([sys.executable, str(script)], timeout=SECONDS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("name", scripts())
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each example runs on ``local://`` without a setting, what it asserts holds, and it waits for all that it has begun."""
    for variable in [variable for variable in os.environ if variable.startswith("TINKER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path))
    run = in_a_process_of_its_own if name == "process_pool" else in_this_process
    run(EXAMPLES / f"{name}.py")
    loop_thread().log_unfinished("when the script ended")
    assert [line for line in caplog.messages if "had not finished" in line] == []


def test_there_are_enough() -> None:
    """Most features have one, besides the quickstart."""
    assert len(scripts()) >= 29
