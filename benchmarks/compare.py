"""Measures two clients in turn, A B A B, against one stub server and prints them side by side. Standard library only.

    python benchmarks/compare.py --ours venv-a/bin/python --official venv-b/bin/python

Numbers are medians over all rounds. Exits 1 when ours is behind in any of them (``--at-least 1``; ``--at-least 4`` asks for a
quarter of the other's).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CLIENTS = ("ours", "official")
# Row of measure.py -> variant -> (title, divisor of the times: what one unit of the row is).
VARIANTS = {
    "import": {
        "alone": ("import tinker", 1),
        "names used": ("import tinker and use its names", 1),
        "names used beside numpy": ("the same where numpy is there already", 1),
        "client ready": ("import, session and sampling client ready", 1),
    },
    "step": {
        "arrays": ("step of 128 x 4096 tokens, from arrays", 1),
        "lists": ("step of 128 x 4096 tokens, from lists", 1),
    },
    "samples": {
        "awaited": ("one of 1,000 samples at once, awaited", 1000),
        "blocked": ("one of 1,000 samples at once, .result()", 1000),
    },
    "memory": {
        "samples": ("10,000 samples in flight", 1),
    },
}
UNITS = {"cpu": ("CPU ms", 1e3), "wall": ("wall ms", 1e3), "modules": ("modules", 1.0), "megabytes": ("MB", 1.0)}

# (row, variant, quantity) -> client -> every value measured
Values = dict[tuple[str, str, str], dict[str, list[float]]]


class Line(NamedTuple):
    """One line of the table, in its unit."""

    title: str
    unit: str
    ours: float
    official: float

    @property
    def ratio(self) -> float:
        """How many times ours the official figure is."""
        return self.official / self.ours if self.ours else float("inf")


# --------------------------------------------------------------------------------------------------------------------- running


@contextlib.contextmanager
def stub_server(sample_delay: float) -> Iterator[str]:
    """A stub server of its own process; its base URL."""
    command = [sys.executable, str(HERE / "stub_server.py"), "--sample-delay", str(sample_delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def measure(python: str, pythonpath: str | None, row: str, base_url: str) -> dict[str, list[dict[str, float]]]:
    """One row in one environment: variant -> measurements. No setting of the caller's reaches the clients."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TINKER_", "PYTHON"))}
    # One thread for numpy's linear algebra, which neither client uses: its idle threads spin and would count as CPU.
    environ |= {"TINKER_API_KEY": "tml-bench", "TINKER_TELEMETRY": "0", "OPENBLAS_NUM_THREADS": "1"}
    if pythonpath:
        environ["PYTHONPATH"] = pythonpath
    command = [python, str(HERE / "measure.py"), row, "--base-url", base_url]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    result: dict[str, list[dict[str, float]]] = json.loads(done.stdout)
    return result


def run(arguments: argparse.Namespace) -> Values:
    """Every row in turn, after one round that only warms the file cache."""
    environments = {"ours": (arguments.ours, arguments.ours_pythonpath), "official": (arguments.official, None)}
    values: Values = {}
    with stub_server(arguments.sample_delay) as base_url:
        for python, pythonpath in environments.values():
            measure(python, pythonpath, "import", base_url)
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
            for row in arguments.rows:
                for client in CLIENTS:
                    measured = measure(*environments[client], row, base_url)
                    _add(values, client, row, measured)
    return values


def _add(values: Values, client: str, row: str, measured: dict[str, list[dict[str, float]]]) -> None:
    for variant, measurements in measured.items():
        for measurement in measurements:
            for quantity, value in measurement.items():
                values.setdefault((row, variant, quantity), {name: [] for name in CLIENTS})[client].append(value)


# -------------------------------------------------------------------------------------------------------------------- showing


def lines(values: Values) -> list[Line]:
    """The medians."""
    table: list[Line] = []
    for (row, variant, quantity), by_client in values.items():
        title, divisor = VARIANTS[row][variant]
        unit, scale = UNITS[quantity]
        share = divisor if quantity in ("cpu", "wall") else 1
        ours, official = (statistics.median(by_client[client]) * scale / share for client in CLIENTS)
        table.append(Line(title, unit, ours, official))
    return table


def plain(table: list[Line]) -> str:
    """The table for a terminal."""
    head = f"{'':42} {'':8} {'ours':>9} {'official':>9} {'ratio':>7}"
    return "\n".join(
        [head, *(f"{x.title:42} {x.unit:8} {_figure(x.ours):>9} {_figure(x.official):>9} {x.ratio:6.1f}x" for x in table)]
    )


def markdown(table: list[Line]) -> str:
    """The table for a document."""
    head = ["| | | ours | official 0.38.0 | ratio |", "|---|---|---:|---:|---:|"]
    return "\n".join(
        [*head, *(f"| {x.title} | {x.unit} | {_figure(x.ours)} | {_figure(x.official)} | {x.ratio:.1f} |" for x in table)]
    )


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def main() -> int:
    """Compare, print, and say in the exit status whether ours is behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="python of the environment with this client")
    parser.add_argument("--official", required=True, help="python of the environment with the official one")
    parser.add_argument("--ours-pythonpath", help="for a client that is not installed: where it lies")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--sample-delay", type=float, default=0.2, help="seconds the server takes for a sample")
    parser.add_argument("--at-least", type=float, default=1.0, help="smallest ratio that is not behind")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    table = lines(run(arguments))
    print(markdown(table) if arguments.markdown else plain(table))
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, medians over {arguments.rounds} rounds")
    behind = [line for line in table if line.ratio < arguments.at_least]
    for line in behind:
        print(f"behind: {line.title}, {line.unit}: {line.ratio:.2f}", file=sys.stderr)
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
