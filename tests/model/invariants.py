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
    results, seen = state.server.results, state.client.seen[later]
    if results[i] is Result.NOT_RUN and any(
        seen >> one & 1 for one in range(i) if results[one] in (Result.FAILED, Result.NOT_RUN)
    ):
        return True
    return is_known(state, i, later) or state.client.phase[i] is Phase.CANCELLED


def is_known(state: State, i: int, later: int) -> bool:
    """Return whether the caller of a later request had the error of this one, or of what stopped
    it.
    """
    while i >= 0:
        if state.client.seen[later] >> i & 1:
            return True
        i = state.client.cause[i]
    return False


def stop_has_a_reason(program: str, state: State) -> bool:
    """A request is not sent only because of a failure that its caller did not know of, and that is
    not the result of a save.
    """
    client = state.client
    stoppers = [
        i
        for i, phase in enumerate(client.phase)
        if phase in (Phase.FAILED, Phase.STOPPED, Phase.CANCELLED)
        and (program[i] in CHANGES or not client.fetched >> i & 1)
    ]
    return all(
        any(i < later and not is_known(state, i, later) for i in stoppers)
        for later, phase in enumerate(client.phase)
        if phase is Phase.STOPPED and not client.fetched >> later & 1
    )


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
    stop_has_a_reason,
    number_names_one_request,
    request_is_accepted_once,
)
#: Of every last state, from which no move leads on.
LAST_INVARIANTS: tuple[Invariant, ...] = (every_future_ends,)
