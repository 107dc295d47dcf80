"""Programs of Python that tests run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def run_program(
    code: str, *words: str, data: bytes = b"", status: int = 0, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a file with this code in a fresh interpreter, which must end with this status.

    A variable of the environment that is None is not there.
    """
    variables = {**os.environ, **environment}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(file), *words],
            input=data,
            capture_output=True,
            env={name: value for name, value in variables.items() if value is not None},
            timeout=300,
            check=False,
        )
    stdout, stderr = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == status, stderr
    return subprocess.CompletedProcess(done.args, status, stdout, stderr)
