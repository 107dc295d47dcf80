"""What must hold in every state of the model, and in the simulation. `INVARIANTS` is the list."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from model.protocol import CHANGES, Phase, Result, State, root

Invariant = Callable[[str, State], bool]


def takes_effect_once(program: str, state: State) -> bool:
    """No request takes effect twice."""
    return len(set(state.applied)) == len(state.applied)


def takes_effect_in_order(program: str, state: State) -> bool:
    """Requests take effect in the order of the calls."""
    return list(state.applied) == sorted(state.applied)


def success_has_taken_effect(program: str, state: State) -> bool:
    """A request whose future has succeeded has taken effect, or does so again before anything
    behind it, while the run lives.
    """
    if state.is_over:
        return True
    done = [
        i for i, phase in enumerate(state.phase) if phase is Phase.DONE and program[i] in CHANGES
    ]
    to_come = {one.request for one in state.journal if one.number >= state.turn}
    return all(i in state.applied or i in to_come for i in done)


def step_has_its_gradient(program: str, state: State) -> bool:
    """Each step includes every gradient called before it, but those whose failure its caller knew
    of, or that were cancelled.
    """
    steps = (i for i in state.applied if program[i] == "S")
    return all(not set(missing(program, state, step, "G")) for step in steps)


def failure_is_known_first(program: str, state: State) -> bool:
    """Nothing takes effect behind a failure of a request that changes the run, unless its caller
    had the error.

    The error of one that was stopped is known with the failure that stopped it.
    """
    return all(not set(missing(program, state, i, CHANGES)) for i in state.applied)


def missing(program: str, state: State, later: int, kinds: str) -> Iterator[int]:
    """Return earlier requests without effect, of which the caller of a later one that has one did
    not know.
    """
    before = state.applied[: state.applied.index(later)]
    for i in range(later):
        if program[i] in kinds and i not in before and not is_excused(state, i, state.seen[later]):
            yield i


def is_excused(state: State, i: int, seen: int) -> bool:
    """Return whether a caller knew that a request has no effect, or had cancelled it."""
    causes = 1 << i | root(state, i)
    if state.results[i] is Result.NOT_RUN:
        causes |= sum(
            1 << one for one in range(i) if state.results[one] in (Result.FAILED, Result.NOT_RUN)
        )
    return bool(seen & causes) or state.phase[i] is Phase.CANCELLED


def number_names_one_request(program: str, state: State) -> bool:
    """No number is that of two requests that were accepted, or that may still be."""
    numbers = {(one.number, one.request) for one in (*state.journal, *state.net)}
    return len({number for number, _ in numbers}) == len(numbers)


def request_is_accepted_once(program: str, state: State) -> bool:
    """No request is accepted under two numbers."""
    return len({one.request for one in state.journal}) == len(state.journal)


def every_future_ends(program: str, state: State) -> bool:
    """Where nothing more can happen, every future has an outcome."""
    return all(phase >= Phase.DONE for phase in state.phase)


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
