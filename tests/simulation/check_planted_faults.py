"""Each planted fault, in a copy of the project, is found within 100,000 operations:
`nox -s simulate`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.copies import ProjectCopy

from simulation.planted import PLANTED

OPERATIONS = 100_000
SEED = 1


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(tmp_path: Path, name: str) -> None:
    """The simulation fails, names a promise that is broken, and prints the line that replays it."""
    project = ProjectCopy(tmp_path)
    with project.changed(*PLANTED[name]):
        status, output = simulate(
            project, "--seed", str(SEED), "--operations", str(OPERATIONS), "--no-shrink"
        )
    assert status == 1, output
    assert re.search(r"FAILED: .*\nnox -s simulate -- --seed 1 --episode \d+", output), output


def simulate(project: ProjectCopy, *arguments: str) -> tuple[int, str]:
    """Run the simulation of a copy; return its exit status and output."""
    paths = [str(project.folder / name) for name in ("generated", ".", "tests", "tests/stress")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "simulation", *arguments]
    done = subprocess.run(
        command, cwd=project.folder, env=variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr
