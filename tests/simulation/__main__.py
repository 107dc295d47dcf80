"""Run random episodes of a seed: `python -m simulation --seed N --operations M`; a failure prints
the line that replays it.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import secrets
import sys
import time
from collections import Counter

from simulation.shrink import shrink
from simulation.sometimes import SOMETIMES, list_unreached
from simulation.world import WORLDS, Plan, make_plan, run_episode

LENGTH = 400  # operations of one episode


def main() -> int:
    options = read_options()
    logging.disable(logging.CRITICAL)
    reached: Counter[str] = Counter()
    began, done, episode = time.process_time(), 0, options.episode or 0
    print(f"seed {options.seed}, {options.operations:,} operations", flush=True)
    gc.disable()
    while done < options.operations:
        plan = make_plan(f"{options.seed}/{episode}", LENGTH)
        outcome = run_episode(plan, reached, print if options.trace else None)
        done += outcome.operations
        if outcome.failure is not None:
            report(options, plan, outcome.failure)
            return 1
        episode += 1
        if episode % 10 == 0 or options.episode is not None:
            gc.collect()
            for world in WORLDS:
                print(
                    "FAILED: nothing is left: the clients of an episode are still in "
                    f"memory\n{replay(world.plan)}"
                )
                return 1
            if episode == 10:  # by now all modules are imported, which are not looked through again
                gc.freeze()
        if options.episode is not None:
            print(f"episode {options.episode}: {outcome.steps} callbacks, {outcome.now:.9f} s")
            return 0
    print(
        f"{done:,} operations in {episode} episodes, {time.process_time() - began:.0f} "
        "s of the processor"
    )
    unreached = list_unreached(reached)
    print(
        f"{len(SOMETIMES) - len(unreached)} of {len(SOMETIMES)} rare states reached; not: "
        f"{', '.join(unreached) or 'none'}"
    )
    if options.reached:
        print(*(f"{count:8} {name}" for name, count in sorted(reached.items())), sep="\n")
    return 0


def replay(plan: Plan) -> str:
    """Return the line that runs an episode again."""
    return f"nox -s simulate -- --seed {plan.seed.replace('/', ' --episode ')}"


def report(options: argparse.Namespace, plan: Plan, failure: str) -> None:
    """Print how to replay a failure, and a smaller plan that fails too."""
    print(f"FAILED: {failure}\n{replay(plan)}", flush=True)
    if not options.no_shrink:
        smaller = shrink(plan, failure)
        print(
            f"smaller: {len(smaller.operations)} operations, {len(smaller.skipped)} faults left out"
        )
        print(*(f"  {name} {number:.3f}" for name, number in smaller.operations), sep="\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--episode", type=int, help="only this one")
    parser.add_argument(
        "--trace", action="store_true", help="print every operation and every exchange"
    )
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument(
        "--reached", action="store_true", help="print which states were reached how often"
    )
    return parser.parse_args()


if __name__ == "__main__":
    # the order of sets of strings is a part of the replay
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
