"""The same scripts with the official clients and with this one, each on a fresh server that
records: requests and results.

python tests/compat/parity/run.py --current PYTHON_WITH_0_38_0 --old PYTHON_WITH_0_7_0 [SCRIPT ...]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import attrs
from comparing import differences, differing_lines, lines, messages
from exceptions import EXCEPTIONS
from recording import Recorded, recording_server

SCRIPTS = Path(__file__).with_name("scripts")
QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.py"
SECONDS = 600
HELPERS = ("showing",)


@attrs.frozen
class Run:
    """What came of a script with one client."""

    code: int
    output: str
    requests: list[Recorded]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--current", required=True, help="a Python that has the official 0.38.0")
    parser.add_argument("--old", required=True, help="a Python that has the official 0.7.0")
    parser.add_argument(
        "--at-once", type=int, default=os.cpu_count() or 1, help="how many scripts run at a time"
    )
    parser.add_argument("scripts", nargs="*", help="names of scripts; all of them by default")
    arguments = parser.parse_args()
    found = {
        path.stem: path
        for path in [*sorted(SCRIPTS.glob("*.py")), QUICKSTART]
        if path.stem not in HELPERS
    }
    require(arguments.current, "0.38.0")
    require(arguments.old, "0.7.0")
    print(f"{'script':20} {'official':8} {'requests':>9} {'results':>8} {'exceptions':>10}")
    chosen = [found[name] for name in arguments.scripts or found]
    pythons = {"0.38.0": arguments.current, "0.7.0": arguments.old}
    failures = 0
    # Each comparison has a process, as the servers are in it and PyTorch's numbers are drawn for a
    # whole process.
    with ProcessPoolExecutor(arguments.at_once, get_context("spawn")) as pool:
        for failed, said in pool.map(partial(compared, pythons=pythons), chosen):
            print(said, flush=True)
            failures += failed
    return failures


def require(python: str, version: str) -> None:
    """SystemExit unless that Python has that official client."""
    found = subprocess.run(
        [
            python,
            "-c",
            (
                "import tinker, importlib.metadata as "
                "m; print(m.version('tinker'), hasattr(tinker, 'resources'))"
            ),
        ],
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
        cwd=tempfile.gettempdir(),
    )
    if found.stdout.split() != [version, "True"]:
        raise SystemExit(f"{python} has tinker {found.stdout.strip()}, not the official {version}")


def compared(script: Path, pythons: dict[str, str]) -> tuple[bool, str]:
    """Whether the script fails or differs for no known reason, and the lines that say so."""
    version = "0.7.0" if script.stem.startswith("old_") else "0.38.0"
    theirs, ours = run(script, pythons[version]), run(script, sys.executable)
    if theirs.code or ours.code:
        how = f"failed: {theirs.code} with the official client, {ours.code} with ours"
        return (
            True,
            f"{script.stem:20} {version:8} {how}\n{(theirs if theirs.code else ours).output}",
        )
    said = differences(messages(theirs.requests), messages(ours.requests))
    shown = differing_lines(lines(theirs.output), lines(ours.output))
    known = {where for name, where in EXCEPTIONS if name == script.stem}
    wrong = [(where, what) for where, what in [*said, *shown] if where not in known]
    gone = known - {where for where, _ in [*said, *shown]}
    counts = (
        f"{sum(messages(theirs.requests).values()):9} {len(lines(theirs.output)):8} {len(known):10}"
    )
    told = [f"{script.stem:20} {version:8} {counts} {'different' if wrong or gone else 'equal'}"]
    told += [f"    {where}: {what[:1500]}" for where, what in wrong]
    told += [f"    {where}: is no exception any more" for where in gone]
    return bool(wrong or gone), "\n".join(told)


def run(script: Path, python: str) -> Run:
    """Run the script with that Python's client, on a separate server."""
    with recording_server() as (url, requests), tempfile.TemporaryFile("w+") as output:
        environment = {
            **_environment(),
            "TINKER_BASE_URL": url,
            "TINKER_API_KEY": "tml-parity",
            "TINKER_TELEMETRY": "0",
        }
        try:
            done = subprocess.run(
                [python, str(script)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = 124
        output.seek(0)
        return Run(code, output.read(), requests)


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHONPATH")
    }


if __name__ == "__main__":
    sys.exit(main())
