"""What must hold in every state of the model, and in the simulation. `INVARIANTS` is the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from model.client import CHANGES, ENDS, Phase, Result
from model.protocol import State

Invariant = Callable[[str, State], bool]


def takes_effect_once(program: str, state: State) -> bool:
    """No request takes effect twice."""
    return len(set(state.server.applied)) == len(state.server.applied)


def takes_effect_in_order(program: str, state: State) -> bool:
    """Requests take effect in the order of the calls."""
    return list(state.server.applied) == sorted(state.server.applied)


def success_has_taken_effect(program: str, state: State) -> bool:
    """A request whose future has succeeded has taken effect, or does so again before anything
    behind it, while the run lives.
    """
    server = state.server
    done = [
        i
        for i, phase in enumerate(state.client.phase)
        if phase is Phase.DONE and program[i] in CHANGES
    ]
    to_come = {one.request for one in server.journal if server.results[one.request] is Result.NONE}
    return server.is_over or all(i in server.applied or i in to_come for i in done)


def step_has_its_gradient(program: str, state: State) -> bool:
    """Each step includes every gradient called before it, but those whose failure its caller knew
    of, or that were cancelled.
    """
    steps = (i for i in state.server.applied if program[i] == "S")
    return all(not set(missing(program, state, step, "G")) for step in steps)


def failure_is_known_first(program: str, state: State) -> bool:
    """Nothing takes effect behind a failure of a request that changes the run, unless its caller
    had the error.

    The error of one that was stopped is known with the failure that stopped it.
    """
    return all(not set(missing(program, state, i, CHANGES)) for i in state.server.applied)


def missing(program: str, state: State, later: int, kinds: str) -> Iterator[int]:
    """Return earlier requests without effect, of which the caller of a later one that has one did
    not know.
    """
    applied = state.server.applied
    before = applied[: applied.index(later)]
    for i in range(later):
        if program[i] in kinds and i not in before and not is_excused(state, i, later):
            yield i


def is_excused(state: State, i: int, later: int) -> bool:
    """Return whether the caller of a later request knew that this one has no effect, or had
    cancelled it.
    """
    causes, cause, results = 1 << i, state.client.cause[i], state.server.results
    while cause >= 0:
        causes, cause = causes | 1 << cause, state.client.cause[cause]
    if results[i] is Result.NOT_RUN:
        failed = (one for one in range(i) if results[one] in (Result.FAILED, Result.NOT_RUN))
        causes |= sum(1 << one for one in failed)
    return bool(state.client.seen[later] & causes) or state.client.phase[i] is Phase.CANCELLED


def number_names_one_request(program: str, state: State) -> bool:
    """No number is that of two requests that were accepted, or that may still be."""
    numbers = {(one.number, one.request) for one in (*state.server.journal, *state.net)}
    return len({number for number, _ in numbers}) == len(numbers)


def request_is_accepted_once(program: str, state: State) -> bool:
    """No request is accepted under two numbers."""
    journal = state.server.journal
    return len({one.request for one in journal}) == len(journal)


def every_future_ends(program: str, state: State) -> bool:
    """Where nothing more can happen, every future has an outcome."""
    return all(phase in ENDS for phase in state.client.phase)


#: Of every state.
INVARIANTS: tuple[Invariant, ...] = (
    takes_effect_once,
    takes_effect_in_order,
    success_has_taken_effect,
    step_has_its_gradient,
    failure_is_known_first,
    number_names_one_request,
    request_is_accepted_once,
)
#: Of every last state, from which no move leads on.
LAST_INVARIANTS: tuple[Invariant, ...] = (every_future_ends,)
