"""Shows user code to mypy and pyright: accepted.py must pass, and of refused.py each line that is
marked, and no other, must fail; and pyright says whether every public type is known.

    python tests/compat/typing/check.py PYTHON

PYTHON has the package installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def mypy(file: Path, python: str) -> set[int]:
    """Return the lines that mypy refuses."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--config-file=",
        f"--python-executable={python}",
    ]
    done = subprocess.run(
        [*command, str(file)], capture_output=True, text=True, check=False, cwd=HERE
    )
    if done.returncode > 1:
        sys.exit(done.stdout + done.stderr)
    return {
        int(found[1])
        for found in re.finditer(
            rf"^{file.name}:(\d+): error", done.stdout.replace(f"{HERE}/", ""), re.M
        )
    }


def pyright(file: Path, python: str) -> set[int]:
    """Return the lines that pyright refuses."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, str(file)]
    report = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE).stdout
    )
    return {
        one["range"]["start"]["line"] + 1
        for one in report["generalDiagnostics"]
        if one["severity"] == "error"
    }


def marked(file: Path) -> set[int]:
    """Return the lines that should be refused."""
    return {
        number
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if line.endswith("# refused")
    }


def main(python: str) -> int:
    """Say which lines are judged otherwise than marked."""
    faults = 0
    for checker in (mypy, pyright):
        for file in (HERE / "accepted.py", HERE / "refused.py"):
            wrong = checker(file, python) ^ marked(file)
            faults += len(wrong)
            judged = f"judges these lines otherwise: {sorted(wrong)}" if wrong else "as it should"
            print(f"{checker.__name__:8} {file.name:12} {judged}")
    known = [sys.executable, "-m", "pyright", "--verifytypes", "tinker", "--ignoreexternal"]
    # here the package is the installed one
    return 1 if subprocess.run(known, check=False, cwd=HERE).returncode or faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
