"""The order of requests of one run as a model: every state of a client, the way to a server, and
the server itself.

A program calls its requests in order, each a gradient (G), a step (S) or a save (V). A state is a
value; `moves` lists what may happen next and what comes of it. What goes wrong costs one of the
state's `faults`, so that the states are finite:

    move      what happens
    --------  --------------------------------------------------------------------------------------
    call      the program calls the next request; `seen` are the failures that it knows of
    send      the request's turn has come: it gets its number and is sent, or a failure before it
              stops it
    arrive    a request arrives at the server, which accepts it once, or refuses its number
    answer    the response arrives at the client
    again     the client does not know whether its request arrived, and sends it again under its
              number
    run       the server runs the next number, unless its caller did not know of a failure before it
    gap       the server gives up waiting for a number that is missing
    fetch     the client gets the result of an accepted request
    look      the program receives the error of a request
    restart   the server is killed and starts again from its journal (or, without a journal, knows
              nothing)

Moves that cost a fault are in `faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple, TypeAlias


class Phase(IntEnum):
    """How far a request is, as its client sees it. All behind WAITING are ends."""

    IDLE = 0
    CALLED = 1
    SENDING = 2
    WAITING = 3  # accepted
    DONE = 4
    STOPPED = 5  # not sent, or not run, because of a failure before it
    REFUSED = 6  # the server does not carry it out
    UNSEEN = 7  # it never reached the server
    UNKNOWN = 8  # given up; it may have been accepted
    FAILED = 9  # accepted, and failed when it ran
    EXPIRED = 10  # accepted; its result is no longer kept
    LOST = 11  # the server no longer knows the session
    CANCELLED = 12


class Result(IntEnum):
    """What the server keeps of a request."""

    NONE = 0
    OK = 1
    FAILED = 2
    NOT_RUN = 3


class Message(NamedTuple):
    """A request on its way. ``known`` is the number of the last failure that its caller knew of;
    ``late``: given up on.
    """

    request: int
    number: int
    known: int
    late: bool = False


class Answer(NamedTuple):
    """A response on its way."""

    request: int
    kind: Phase


class Accepted(NamedTuple):
    """A request that the server has written into its journal."""

    number: int
    request: int
    known: int


class State(NamedTuple):
    """One state. Sets of requests are bit masks; tuples have one entry for each request."""

    phase: tuple[Phase, ...]
    number: tuple[int, ...]  # 0 while it has none
    seen: tuple[int, ...]  # the failures that the program had received when it called
    # of a STOPPED one: the failure that stopped it, -1 for none that the client has
    cause: tuple[int, ...]
    # the first failure before it that the client met after the call, -1 for none
    behind: tuple[int, ...] = ()
    next: int = 1  # number of the client
    # numbers in use again, as the server seemed not to have seen them
    reused: frozenset[int] = frozenset()
    maybe: int = 0  # requests of which an attempt may have arrived
    received: int = 0
    blocks: int = 0  # failures that stop later requests until they are received
    # of these, those whose numbers later requests carry: everything before them has an outcome
    told: int = 0
    net: frozenset[Message] = frozenset()
    answers: frozenset[Answer] = frozenset()
    journal: tuple[Accepted, ...] = ()
    unwritten: int = 0  # accepted requests that a restart forgets: none, unless a rule is broken
    results: tuple[Result, ...] = ()
    gone: int = 0  # requests whose results are no longer kept
    turn: int = 1  # the number that the server runs next
    skipped: frozenset[int] = frozenset()
    failure: int = 0  # the number of the last request that changes the run and failed by itself
    applied: tuple[int, ...] = ()  # requests in the order in which they took effect
    kept: int = 0  # the number of the last step, up to which the weights are on disk
    # requests that have run well, perhaps before a restart, and do so whenever they run
    ran: int = 0
    bad: int = 0  # requests that the server refuses for their content
    is_over: bool = False  # the session has ended, or is forgotten
    is_forgotten: bool = False
    faults: int = 0
    restarts: int = 0


class Rules(NamedTuple):
    """What the parties do. The defaults are the protocol; each other value is a mistake that the
    invariants must find.
    """

    is_journaled: bool = True  # without a journal, a restart forgets the session
    writes_before_answer: bool = True
    keeps_unknown_numbers: bool = True
    checks_receipt_at_call: bool = True
    stops_at_server: bool = True
    tells_settled_failures: bool = True
    repeats_under_its_number: bool = True


PROTOCOL = Rules()
Move: TypeAlias = tuple[str, int]
Moves: TypeAlias = Iterator[tuple[Move, State]]
CHANGES = "GS"


def start(program: str, *, faults: int = 0, restarts: int = 0) -> State:
    """Return the state before the first call."""
    count = len(program)
    return State(
        (Phase.IDLE,) * count,
        (0,) * count,
        (0,) * count,
        (-1,) * count,
        (-1,) * count,
        results=(Result.NONE,) * count,
        faults=faults,
        restarts=restarts,
    )


def put(values: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    """Return the tuple with another value at one place."""
    return (*values[:index], value, *values[index + 1 :])


def moves(program: str, state: State, rules: Rules = PROTOCOL) -> Moves:
    """Return what may happen next without a fault."""
    yield from user_moves(state)
    yield from client_moves(program, state, rules)
    yield from server_moves(program, state, rules)


# -------------------------------------------------------------------------------------- the program


def user_moves(state: State) -> Moves:
    """Call the next request, or receive an error."""
    if Phase.IDLE in state.phase:
        i = state.phase.index(Phase.IDLE)
        yield (
            ("call", i),
            state._replace(
                phase=put(state.phase, i, Phase.CALLED), seen=put(state.seen, i, state.received)
            ),
        )
    for i, phase in enumerate(state.phase):
        if phase > Phase.DONE and phase is not Phase.CANCELLED and not state.received >> i & 1:
            yield ("look", i), state._replace(received=state.received | 1 << i | root(state, i))


def root(state: State, i: int) -> int:
    """Return the failures that are received with the error of a request: those that stopped it."""
    mask = 0
    while (i := state.cause[i]) >= 0:
        mask |= 1 << i
    return mask


# --------------------------------------------------------------------------------------- the client


def client_moves(program: str, state: State, rules: Rules) -> Moves:
    """Send the first request that is not sent, take a response, or fetch a result."""
    i = sender(state)
    if i is not None and state.phase[i] is Phase.CALLED:
        yield ("send", i), send(state, i, rules)
    for answer in state.answers:
        rest = state._replace(answers=state.answers - {answer})
        yield ("answer", answer.request), take_answer(program, rest, answer, rules)
    if i is not None and is_unanswered(state, i):
        yield ("again", i), send_again(state._replace(maybe=state.maybe | 1 << i), i, rules)
    for i, phase in enumerate(state.phase):
        if phase is Phase.WAITING:
            yield from fetch(program, state, i)


def sender(state: State) -> int | None:
    """Return the request whose turn it is: the first that the client has not finished sending."""
    return next(
        (i for i, phase in enumerate(state.phase) if phase in (Phase.CALLED, Phase.SENDING)), None
    )


def is_unanswered(state: State, i: int) -> bool:
    """Return whether nothing of the last attempt is under way any more."""
    current = any(one.request == i and not one.late for one in state.net)
    return (
        state.phase[i] is Phase.SENDING
        and not current
        and not any(one.request == i for one in state.answers)
    )


def send(state: State, i: int, rules: Rules) -> State:
    """Send a request under the next number, unless a failure that its caller did not know of stops
    it.
    """
    known = state.seen[i] if rules.checks_receipt_at_call else state.received
    stopping = state.blocks & ~known & (1 << i) - 1
    if stopping:
        cause = (stopping & -stopping).bit_length() - 1
        return state._replace(
            phase=put(state.phase, i, Phase.STOPPED), cause=put(state.cause, i, cause)
        )
    numbered = state._replace(number=put(state.number, i, state.next), next=state.next + 1)
    return transmit(numbered._replace(phase=put(state.phase, i, Phase.SENDING)), i, rules)


def send_again(state: State, i: int, rules: Rules) -> State:
    """Send a request under the number that it has."""
    if not rules.repeats_under_its_number:
        state = state._replace(number=put(state.number, i, state.next), next=state.next + 1)
    return transmit(state, i, rules)


def transmit(state: State, i: int, rules: Rules) -> State:
    known = state.seen[i] if rules.checks_receipt_at_call else state.received
    failures = [state.number[one] for one in range(i) if (state.told & known) >> one & 1]
    return state._replace(net=state.net | {Message(i, state.number[i], max(failures, default=0))})


def take_answer(program: str, state: State, answer: Answer, rules: Rules) -> State:
    """Take the response to the attempt that is under way; a request that may have arrived before is
    not refused later.
    """
    i, kind = answer
    number = state.number[i]
    if kind is Phase.WAITING:
        return state._replace(
            phase=put(state.phase, i, Phase.WAITING), reused=state.reused - {number}
        )
    if kind is not Phase.LOST and state.maybe >> i & 1:
        kind = Phase.UNKNOWN
    if kind is Phase.REFUSED and number in state.reused:  # the server has seen it after all
        renumbered = state._replace(number=put(state.number, i, state.next), next=state.next + 1)
        return transmit(renumbered._replace(reused=state.reused - {number}), i, rules)
    return fail(program, state, i, kind, rules)


def fail(program: str, state: State, i: int, kind: Phase, rules: Rules) -> State:
    """End a request with a failure, which stops later ones if the request changes the run or may
    have been accepted.
    """
    state = state._replace(phase=put(state.phase, i, kind))
    if program[i] in CHANGES or kind is Phase.UNKNOWN:
        state = block(state, i, rules)
    if kind is Phase.UNSEEN or (kind is Phase.UNKNOWN and not rules.keeps_unknown_numbers):
        reused = state.reused | {state.number[i]}
        return state._replace(next=state.number[i], number=put(state.number, i, 0), reused=reused)
    return state


def block(state: State, i: int, rules: Rules) -> State:
    """Stop later requests. Their number says that the failure is known, unless the server may still
    run something before it.
    """
    is_settled = state.phase[i] is Phase.FAILED or all(
        phase >= Phase.DONE for phase in state.phase[:i]
    )
    told = state.told | 1 << i if is_settled or not rules.tells_settled_failures else state.told
    behind = tuple(
        i
        if later > i and Phase.CALLED <= state.phase[later] <= Phase.WAITING and not 0 <= first < i
        else first
        for later, first in enumerate(state.behind)
    )
    return state._replace(blocks=state.blocks | 1 << i, told=told, behind=behind)


def fetch(program: str, state: State, i: int) -> Moves:
    """Return the outcome of an accepted request. One that was not run waits for everything before
    it.
    """
    move, result = ("fetch", i), state.results[i]
    if state.is_forgotten:
        yield move, fail(program, state, i, Phase.LOST, PROTOCOL)
    elif state.gone >> i & 1:
        yield move, fail(program, state, i, Phase.EXPIRED, PROTOCOL)
    elif result is Result.OK:
        yield move, state._replace(phase=put(state.phase, i, Phase.DONE))
    elif result is Result.FAILED:
        yield move, fail(program, state, i, Phase.FAILED, PROTOCOL)
    elif result is Result.NOT_RUN and all(phase >= Phase.DONE for phase in state.phase[:i]):
        cause = state.behind[i]
        stopped = state._replace(
            phase=put(state.phase, i, Phase.STOPPED), cause=put(state.cause, i, cause)
        )
        yield move, stopped if cause >= 0 else block(stopped, i, PROTOCOL)


# --------------------------------------------------------------------------------------- the server


def server_moves(program: str, state: State, rules: Rules) -> Moves:
    """Take a request, run the next number, or give up a missing one."""
    for message in state.net:
        rest = state._replace(net=state.net - {message})
        yield (
            ("arrive late" if message.late else "arrive", message.request),
            arrive(rest, message, rules),
        )
    waiting = [one for one in state.journal if one.number >= state.turn]
    if (one := first(state)) is not None:
        yield ("run", one.request), run(program, state, one, rules)
    elif waiting and state.is_over:
        yield ("gap", state.turn), fail_rest(state, waiting)
    elif waiting:
        yield (
            ("gap", state.turn),
            pass_over(state._replace(turn=min(one.number for one in waiting))),
        )


def first(state: State) -> Accepted | None:
    """Return the request that runs next, if it has arrived."""
    return next((one for one in state.journal if one.number == state.turn), None)


def arrive(state: State, message: Message, rules: Rules) -> State:
    """Accept a request once; the same again gets the same answer, another one under its number is
    refused.
    """
    state, kind = judge(state, message, rules)
    return (
        state
        if message.late
        else state._replace(answers=state.answers | {Answer(message.request, kind)})
    )


def judge(state: State, message: Message, rules: Rules) -> tuple[State, Phase]:
    known = next((one for one in state.journal if one.number == message.number), None)
    if state.is_over:
        return state, Phase.LOST
    if known is not None:
        return state, Phase.WAITING if known.request == message.request else Phase.REFUSED
    if message.number < state.turn or message.number in state.skipped:
        return state, Phase.REFUSED
    if state.bad >> message.request & 1:
        return pass_over(state._replace(skipped=state.skipped | {message.number})), Phase.REFUSED
    unwritten = 0 if rules.writes_before_answer else 1 << message.request
    journal = (*state.journal, Accepted(message.number, message.request, message.known))
    return state._replace(journal=journal, unwritten=state.unwritten | unwritten), Phase.WAITING


def pass_over(state: State) -> State:
    """Go on behind numbers that were refused, or that have a result from before a restart."""
    done = {one.number for one in state.journal if state.results[one.request] is not Result.NONE}
    turn = state.turn
    while turn in state.skipped or turn in done:
        turn += 1
    return state._replace(turn=turn)


def fail_rest(state: State, waiting: list[Accepted]) -> State:
    """Fail what waits for a missing number at the end of the session."""
    results = list(state.results)
    for one in waiting:
        results[one.request] = Result.FAILED
    return pass_over(
        state._replace(results=tuple(results), turn=max(one.number for one in waiting) + 1)
    )


def run(program: str, state: State, one: Accepted, rules: Rules) -> State:
    """Run a request, unless it follows a failure that its caller did not know of
    when it was sent.
    """
    i = one.request
    is_stopped = one.known < state.failure < one.number and rules.stops_at_server
    result = Result.NOT_RUN if is_stopped else Result.OK
    state = state._replace(
        results=put(state.results, i, result), unwritten=state.unwritten & ~(1 << i)
    )
    if not is_stopped:
        state = take_effect(program, state._replace(ran=state.ran | 1 << i), one)
    return pass_over(state._replace(turn=state.turn + 1))


def take_effect(program: str, state: State, one: Accepted) -> State:
    """Let a request take effect. The weights are kept after a step, together with its result."""
    if program[one.request] not in CHANGES:
        return state
    kept = one.number if program[one.request] == "S" else state.kept
    return state._replace(applied=(*state.applied, one.request), kept=kept)
