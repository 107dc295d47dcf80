"""What goes wrong in the model, one move for each fault.

fault     what happens
--------  ------------------------------------------------------------------------------------------
drop      a request is lost on its way
mute      a response is lost on its way
delay     the client waits no longer for a request, which is still on its way
refuse    the server refuses a request for its content; its number is used up
front     something in front of the server refuses a request, which the server never sees
unseen    a request cannot be sent at all, and the client knows that no attempt has arrived
give up   the client gives up a request that may have arrived
break     a request fails when it runs
expire    a result is dropped before it was fetched
end       the session is ended
cancel    the program cancels a request
restart   the server is killed and started again; it costs one of the restarts, not a fault
"""

from __future__ import annotations

from model.protocol import (
    CHANGES,
    PROTOCOL,
    Accepted,
    Answer,
    Message,
    Moves,
    Phase,
    Result,
    Rules,
    State,
    arrive,
    fail,
    first,
    is_unanswered,
    pass_over,
    put,
    sender,
)


def fault_moves(program: str, state: State, rules: Rules = PROTOCOL) -> Moves:
    """Return what may go wrong next."""
    if state.restarts:
        yield ("restart", 0), restart(program, state._replace(restarts=state.restarts - 1), rules)
    if state.faults:
        worse = state._replace(faults=state.faults - 1)
        yield from network_faults(worse)
        yield from client_faults(program, worse, rules)
        yield from server_faults(program, worse)


def network_faults(state: State) -> Moves:
    """Lose a request or a response, or let a request be late."""
    for message in state.net:
        rest = state.net - {message}
        yield ("drop late" if message.late else "drop", message.request), state._replace(net=rest)
        if not message.late:
            late = message._replace(late=True)
            yield (
                ("delay", message.request),
                state._replace(net=rest | {late}, maybe=state.maybe | 1 << message.request),
            )
    for answer in state.answers:
        yield ("mute", answer.request), state._replace(answers=state.answers - {answer})


def client_faults(program: str, state: State, rules: Rules) -> Moves:
    """Give up a request, or cancel one."""
    i = sender(state)
    if i is not None and is_unanswered(state, i):
        maybe = state._replace(maybe=state.maybe | 1 << i)
        yield ("give up", i), fail(program, maybe, i, Phase.UNKNOWN, rules)
    for message in state.net:
        if not message.late and not state.maybe >> message.request & 1:
            rest = state._replace(net=state.net - {message})
            yield (
                ("unseen", message.request),
                fail(program, rest, message.request, Phase.UNSEEN, rules),
            )
    for i, phase in enumerate(state.phase):
        if phase in (Phase.CALLED, Phase.WAITING):
            yield ("cancel", i), state._replace(phase=put(state.phase, i, Phase.CANCELLED))


def server_faults(program: str, state: State) -> Moves:
    """Refuse a request, let it fail, drop a result, or end the session."""
    for message in state.net:
        if not message.late:
            yield from refusals(state, message)
    if (one := first(state)) is not None and not state.ran >> one.request & 1:
        yield from breaks(program, state, one)
    for i, phase in enumerate(state.phase):
        if (
            state.results[i] is not Result.NONE
            and phase is Phase.WAITING
            and not state.gone >> i & 1
        ):
            yield ("expire", i), state._replace(gone=state.gone | 1 << i)
    if not state.is_over:
        yield ("end", 0), state._replace(is_over=True)


def refusals(state: State, message: Message) -> Moves:
    """Refuse a request in front of the server, or at the server."""
    i, rest = message.request, state._replace(net=state.net - {message})
    yield ("front", i), rest._replace(answers=rest.answers | {Answer(i, Phase.REFUSED)})
    is_new = message.number >= state.turn and all(
        one.number != message.number for one in state.journal
    )
    if is_new and not state.is_over and not state.bad >> i & 1:
        yield ("refuse", i), arrive(rest._replace(bad=rest.bad | 1 << i), message, PROTOCOL)


def breaks(program: str, state: State, one: Accepted) -> Moves:
    """Let the next request fail when it runs."""
    if not one.known < state.failure < one.number:
        results = put(state.results, one.request, Result.FAILED)
        failure = one.number if program[one.request] in CHANGES else state.failure
        yield (
            ("break", one.request),
            pass_over(state._replace(results=results, failure=failure, turn=state.turn + 1)),
        )


def restart(program: str, state: State, rules: Rules) -> State:
    """Kill the server. What is on its way breaks. It goes on after the last step; gradients behind
    that run again.

    A request that failed for its content, and whose result is gone, would fail again, so it is left
    as it is.
    """
    maybe = state.maybe
    for one in (*state.net, *state.answers):
        maybe |= 1 << one.request
    late = frozenset(one for one in state.net if one.late)
    state = state._replace(
        net=late, answers=frozenset(), maybe=maybe, skipped=frozenset(), turn=state.kept + 1
    )
    if not rules.is_journaled or state.is_over:
        return state._replace(is_over=True, is_forgotten=True, journal=(), applied=())
    journal = tuple(one for one in state.journal if not state.unwritten >> one.request & 1)
    behind = {one.request for one in journal if one.number > state.kept}
    repeated = {
        i
        for i in behind
        if state.results[i] is Result.OK and (program[i] == "G" or state.gone >> i & 1)
    }
    results = tuple(
        Result.NONE if i in repeated else result for i, result in enumerate(state.results)
    )
    applied = tuple(i for i in state.applied if i not in behind)
    gone = state.gone & ~sum(1 << i for i in repeated)
    return pass_over(
        state._replace(journal=journal, unwritten=0, results=results, applied=applied, gone=gone)
    )
