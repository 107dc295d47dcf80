"""A running ``tinker serve``, checked from outside by the tools for authors of servers.

    python tests/contract/live.py

runs schemathesis and ``tinker conformance`` against it. Fails when one of them finds something, or
takes too long.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
KEY = "tml-key"
#: `-P`: import the installed package, not the working folder.
TINKER = [sys.executable, "-P", "-m", "tinker.cli"]
SCHEMATHESIS = [
    sys.executable,
    "-P",
    "-m",
    "schemathesis.cli",
    "run",
    "openapi.yaml",
    "--warnings",
    "off",
]
LIMIT_SECONDS = 150


@contextmanager
def serving(hold_seconds: str) -> Iterator[str]:
    """Run an empty server in a process; yield its URL."""
    with tempfile.TemporaryDirectory() as folder, started(folder, hold_seconds) as url:
        yield url


@contextmanager
def started(folder: str, hold_seconds: str) -> Iterator[str]:
    """Run a server with this folder."""
    command = [
        *TINKER,
        "serve",
        "--engine",
        "toy",
        "--port",
        "0",
        "--hold",
        hold_seconds,
        "--api-key",
        KEY,
        "--data",
        folder,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, f"tinker serve said {line!r}"
            yield found[0]
        finally:
            server.terminate()


def passes(command: list[str]) -> bool:
    """Return whether a command succeeds in time."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests"),
        "SCHEMATHESIS_HOOKS": str(ROOT / "tests/support/fuzzing.py"),
    }
    try:
        return (
            subprocess.run(
                command, cwd=ROOT, env=environment, timeout=LIMIT_SECONDS, check=False
            ).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        click.echo(f"no end within {LIMIT_SECONDS} s")
        return False


def main() -> int:
    """Run both, each on a server that the other has not filled; 1 when one of them fails."""
    commands = {
        "schemathesis": ("0.05", [*SCHEMATHESIS, "-H", f"X-API-Key: {KEY}", "--url"]),
        "conformance": ("2", [*TINKER, "conformance", "--api-key", KEY, "--strict", "--base-url"]),
    }
    outcomes: dict[str, bool] = {}
    for name, (hold_seconds, command) in commands.items():
        with serving(hold_seconds) as url:
            outcomes[name] = passes([*command, url])
    for name, passed in outcomes.items():
        click.echo(f"{name}: {'passed' if passed else 'FAILED'}")
    return 0 if all(outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
