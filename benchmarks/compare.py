"""Measures two clients in turn, A B A B, against one stub server and prints them side by side.
Standard library only.

    python benchmarks/compare.py --ours venv-a/bin/python --official venv-b/bin/python

Each task is a row of measure.py over one of the wires of wires.py. Numbers are medians over all
rounds, "ours / official", and what share the first is of the second. With
``--processors own avx2 sse`` each round is also made as on a processor without AVX-512 and on one
without AVX, and every figure is the range from the least to the most of these medians. Exits 1 when
a share of the CPU is above ``--at-most``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from wires import ROUND_TRIP_SECONDS, toy_server, wires

HERE = Path(__file__).parent
CLIENTS = ("ours", "official")
QUANTITIES = {"cpu": "CPU ms", "wall": "wall ms", "peak": "peak MB"}
WIRES = {
    "https": "HTTPS, HTTP/2",
    "distant": f"... and {ROUND_TRIP_SECONDS * 1000:.0f} ms away",
    "plain": "plain HTTP",
    "toy": "plain HTTP",
    "": "",
}


# What the C library copies with, and numpy computes with. Names that this machine's do not know
# have no effect.
_NO_AVX_512 = "-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD"
_NO_NUMPY_512 = "X86_V4 AVX512_ICL AVX512_SPR"
PROCESSORS = {
    "own": {},
    "avx2": {
        "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={_NO_AVX_512}",
        "NPY_DISABLE_CPU_FEATURES": _NO_NUMPY_512,
    },
    "sse": {
        "GLIBC_TUNABLES": f"glibc.cpu.hwcaps={_NO_AVX_512},-AVX2,-AVX,-ERMS,-FSRM",
        "NPY_DISABLE_CPU_FEATURES": f"{_NO_NUMPY_512} X86_V3",
    },
}


class Task(NamedTuple):
    """A row of measure.py, the wire it uses, and who is measured."""

    row: str
    wire: str
    clients: tuple[str, ...] = CLIENTS


TASKS = {
    "samples": Task("samples", "https"),
    "samples-distant": Task("samples", "distant"),
    "samples-plain": Task("samples", "plain"),
    "many": Task("many", "https"),
    "step": Task("step", "https"),
    "step-plain": Task("step", "plain"),
    "start": Task("start", "distant"),
    "import": Task("import", ""),
    "command": Task("command", "toy", ("ours",)),
}

# (task, variant) -> quantity -> client -> processor -> every value measured
ByProcessor = dict[str, list[float]]
Values = dict[tuple[str, str], dict[str, dict[str, ByProcessor]]]


# ------------------------------------------------------------------------------------------ running


def measure(
    python: str, row: str, base_url: str, trust: Mapping[str, str]
) -> dict[str, list[dict[str, float]]]:
    """One row in one environment: variant -> measurements. No setting of the caller's reaches the
    clients.
    """
    names = {name for name in os.environ if name.startswith(("TINKER_", "PYTHON", "SSL_CERT_"))}
    environ = {name: value for name, value in os.environ.items() if name not in names}
    # One thread for numpy's linear algebra, which neither client uses: its idle threads spin and
    # would count as CPU.
    environ |= {
        "TINKER_API_KEY": "tml-bench",
        "TINKER_TELEMETRY": "0",
        "OPENBLAS_NUM_THREADS": "1",
        **trust,
    }
    command = [python, str(HERE / "measure.py"), row, "--base-url", base_url]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    result: dict[str, list[dict[str, float]]] = json.loads(done.stdout)
    return result


@contextlib.contextmanager
def served(
    tasks: list[str], ours: str, sample_delay: float
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield the wires, that of the toy server if a task needs it, and the variables with which
    clients trust them.
    """
    with contextlib.ExitStack() as stack:
        urls, trust = stack.enter_context(wires(sample_delay))
        if "command" in tasks:
            urls["toy"] = stack.enter_context(toy_server(ours))
        yield {"": "none", **urls}, trust


def run(arguments: argparse.Namespace) -> Values:
    """Every task in turn, after one round that only warms the file cache."""
    pythons = {"ours": arguments.ours, "official": arguments.official}
    values: Values = {}
    with served(arguments.tasks, arguments.ours, arguments.sample_delay) as (urls, trust):
        for python in pythons.values():
            measure(python, "import", "none", trust)
        for number in range(arguments.rounds):
            for name, processor in itertools.product(arguments.tasks, arguments.processors):
                task, variables = TASKS[name], {**trust, **PROCESSORS[processor]}
                for client in task.clients if task.wire in urls else ():
                    print(
                        f"round {number + 1} of {arguments.rounds}: {name}, {client}, {processor}",
                        file=sys.stderr,
                    )
                    _add(
                        values,
                        name,
                        client,
                        processor,
                        measure(pythons[client], task.row, urls[task.wire], variables),
                    )
    return values


def _add(
    values: Values,
    task: str,
    client: str,
    processor: str,
    measured: dict[str, list[dict[str, float]]],
) -> None:
    for variant, measurements in measured.items():
        for measurement in measurements:
            for quantity, value in measurement.items():
                by_client = values.setdefault((task, variant), {}).setdefault(quantity, {})
                by_client.setdefault(client, {}).setdefault(processor, []).append(value)


# ------------------------------------------------------------------------------------------ showing


def table(values: Values) -> str:
    """Return the medians, for a terminal and for a document."""
    head = "".join(f" {name}, ours / official | share |" for name in QUANTITIES.values())
    lines = [f"| | |{head}", "|---|---|" + "--:|--:|" * len(QUANTITIES)]
    for (task, variant), by_quantity in values.items():
        cells = "".join(_cells(by_quantity[quantity]) for quantity in QUANTITIES)
        lines.append(f"| {variant} | {WIRES[TASKS[task].wire]} |{cells}")
    return "\n".join(lines)


def _cells(by_client: dict[str, ByProcessor]) -> str:
    medians = [
        map(statistics.median, by_client[client].values())
        for client in CLIENTS
        if client in by_client
    ]
    ours, *official = (_range(map(_figure, sorted(one))) for one in medians)
    return (
        f" {ours} / {official[0]} | {_range(f'{one:.2f}' for one in shares(by_client))} |"
        if official
        else f" {ours} | |"
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _range(figures: Iterable[str]) -> str:
    least, *_, most = [*figures] * 2
    return least if least == most else f"{least} to {most}"


def shares(by_client: dict[str, ByProcessor]) -> list[float]:
    """Return what part of the official figure ours is, on each processor, the least first; 0 where
    there is no official one.
    """
    ours, official = by_client["ours"], by_client.get("official")
    return sorted(
        statistics.median(ours[one]) / statistics.median(official[one]) if official else 0.0
        for one in ours
    )


def main() -> int:
    """Compare, print, and say in the exit status whether ours is behind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ours", required=True, help="python of the environment with this client")
    parser.add_argument(
        "--official", required=True, help="python of the environment with the official one"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--processors", nargs="+", choices=PROCESSORS, default=["own"])
    parser.add_argument(
        "--sample-delay", type=float, default=0.2, help="seconds the server takes for a sample"
    )
    parser.add_argument(
        "--at-most",
        type=float,
        default=1.0,
        help="largest share of the official CPU that is not behind",
    )
    arguments = parser.parse_args()
    values = run(arguments)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(table(values))
    print(
        f"\nPython {platform.python_version()}, {os.cpu_count()} cores, load {load}, medians over "
        f"{arguments.rounds} rounds"
    )
    behind = [
        f"{task}, {variant}"
        for (task, variant), one in values.items()
        if shares(one["cpu"])[-1] > arguments.at_most
    ]
    for one in behind:
        print(f"behind: {one}", file=sys.stderr)
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
