"""Every state of the model that a program can reach, and the moves to one that
breaks an invariant.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections import deque
from collections.abc import Generator, Iterable
from itertools import product
from typing import NamedTuple

from simulation.loop import simulated_loop

from model.client import Phase
from model.invariants import INVARIANTS, LAST_INVARIANTS
from model.protocol import Move, Moves, State, World


class Found(NamedTuple):
    """How many states there are, and the shortest way to a broken invariant, if there is one."""

    states: int
    broken: str | None = None
    trace: tuple[Move, ...] = ()


def explore(
    program: str, *, faults: int, restarts: int, way: Iterable[Move] = (), **rules: bool
) -> Found:
    """Reach every state behind these moves; stop at the first that breaks an invariant."""
    with simulated_loop(program) as loop, without_warnings():
        world = World(program, loop, **rules)
        first = world.start(faults=faults, restarts=restarts)
        for move in way:
            first = dict((*world.moves(first), *world.faults(first)))[move]
        origins: dict[State, tuple[State, Move] | None] = {first: None}
        queue = deque([first])
        while queue:
            state = queue.popleft()
            onward = list(without_idle_looks(state, world.moves(state)))
            if (broken := check(program, state, is_last=not onward)) is not None:
                return Found(len(origins), broken, way_to(state, origins))
            worse = () if has_looked(state) else world.faults(state)
            for move, following in (*onward, *worse):
                if following not in origins:
                    origins[following] = state, move
                    queue.append(following)
        return Found(len(origins))


@contextlib.contextmanager
def without_warnings() -> Generator[None]:
    """Leave out what the client says of requests that are cancelled."""
    logger = logging.getLogger("tinker")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def without_idle_looks(state: State, found: Moves) -> Moves:
    """Leave out what leads to no other end: only a call depends on what was received, so errors are
    received just before it.
    """
    if Phase.IDLE not in state.client.phase:
        return (one for one in found if one[0][0] != "look")
    return (one for one in found if one[0][0] in ("call", "look")) if has_looked(state) else found


def has_looked(state: State) -> bool:
    """Return whether an error was received since the last call."""
    client = state.client
    return bool(client.seen) and client.received != client.seen[-1]


def check(program: str, state: State, *, is_last: bool) -> str | None:
    """Return the name of an invariant that a state breaks."""
    for invariant in (*INVARIANTS, *(LAST_INVARIANTS if is_last else ())):
        if not invariant(program, state):
            return invariant.__name__
    return None


def way_to(state: State, origins: dict[State, tuple[State, Move] | None]) -> tuple[Move, ...]:
    """Return the moves that led to a state."""
    way: list[Move] = []
    while (origin := origins[state]) is not None:
        state, move = origin
        way.append(move)
    return tuple(reversed(way))


def programs(length: int) -> list[str]:
    """Return every program of so many requests that begins with a gradient, which is no loss: a
    step may be without one.
    """
    return ["".join(("G", *rest)) for rest in product("GSV", repeat=length - 1)]


def main() -> int:
    """Explore the programs of the command line, or all of a length; print the states, and the way
    to a broken invariant.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "programs", nargs="*", help="such as GSGS: gradient, step, gradient, step; V is a save"
    )
    parser.add_argument(
        "--length",
        type=int,
        default=4,
        help="of all programs, where none is named (default %(default)s)",
    )
    parser.add_argument("--faults", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument(
        "--without-journal",
        action="store_true",
        help="of a server that forgets its sessions when it is killed",
    )
    options = parser.parse_args()
    broken = 0
    for program in options.programs or programs(options.length):
        found = explore(
            program,
            faults=options.faults,
            restarts=options.restarts,
            is_journaled=not options.without_journal,
        )
        print(
            f"{program}: {found.states:,} states; {found.broken or 'every invariant holds'}",
            *found.trace,
            flush=True,
        )
        broken += found.broken is not None
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
