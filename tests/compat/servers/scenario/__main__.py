"""Run the scenario against a server with whichever client is installed, and write what came of each
step as JSON.

python tests/compat/servers/scenario --base-url URL --api-key KEY --model NAME --out FILE [--only
WORDS] [--total SECONDS]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from steps import STEPS, Outcome, as_json, run_step
from world import World, allow_for_slowness

AREAS = ("clients", "losses", "states", "sampling", "order", "lists", "futures", "last")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--base-url", "--api-key", "--model"):
        parser.add_argument(name, required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument(
        "--only", default="", help="run the steps whose area and title have this text"
    )
    parser.add_argument(
        "--total", type=float, default=1500.0, help="seconds after which no further step is begun"
    )
    parser.add_argument(
        "--slow", type=float, default=1.0, help="how many times as long a step may take"
    )
    arguments = parser.parse_args()
    allow_for_slowness(arguments.slow)
    warnings.simplefilter("ignore")
    for area in AREAS:
        importlib.import_module(area)
    with tempfile.TemporaryDirectory() as folder:
        world = World(arguments.base_url, arguments.api_key, arguments.model, Path(folder))
        outcomes = run(world, arguments)
    write(arguments.out, outcomes)
    print(summary(outcomes), flush=True)
    return 0


def run(world: World, arguments: argparse.Namespace) -> list[Outcome]:
    """The outcomes of all steps; each is printed and written down at once, so that none is lost."""
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    for one in STEPS:
        if arguments.only not in f"{one.area}: {one.title}":
            continue
        left = arguments.total - (time.monotonic() - begun)
        world.used.clear()
        if left < 1:
            outcome = Outcome(
                one.area,
                one.title,
                "not reached",
                0.0,
                message="the time of the whole run was over",
            )
        else:
            outcome = run_step(one, world, min(one.seconds * arguments.slow, left))
        if outcome.status in ("failed", "timeout"):
            world.forget(world.used)
        outcomes.append(outcome)
        write(arguments.out, outcomes)
        print(
            f"{outcome.status:12} {outcome.seconds:6.1f} s  {one.area}: {one.title}  "
            f"{outcome.error} {outcome.message[:160]!r}",
            flush=True,
        )
    return outcomes


def write(path: Path, outcomes: list[Outcome]) -> None:
    """Write what is known so far."""
    path.write_text(
        json.dumps({**environment(), "steps": [as_json(one) for one in outcomes]}, indent=1) + "\n"
    )


def environment() -> dict[str, Any]:
    """Which client this is."""
    return {
        "client": "ours" if importlib.util.find_spec("tinker_wire") else "official",
        "version": importlib.metadata.version("tinker"),
        "python": platform.python_version(),
    }


def summary(outcomes: list[Outcome]) -> str:
    """How many ended how."""
    counts: dict[str, int] = {}
    for one in outcomes:
        counts[one.status] = counts.get(one.status, 0) + 1
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


if __name__ == "__main__":
    code = main()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code)  # steps that were given up may still be waiting
