"""What can happen to one run, from each state of its client, of its server and of what is on its
way between them.

A program calls its requests in order, each a gradient (G), a step (S) or a save (V).

    move      what happens
    --------  --------------------------------------------------------------------------------------
    call      the program calls the next request
    prepare   a request is ready to be sent, which it is when its turn comes
    arrive    a request arrives at the server
    answer    the response arrives at the client
    run       the server runs the next request
    gap       the server gives up waiting for a number that is missing
    fetch     the client gets the result of an accepted request
    look      the program receives the error of a request

Each of these costs one of the state's `faults`, so that the states are finite:

    drop      a request is lost on its way; the client sends it again, as after the next two
    delay     the client waits no longer for a request, which is still on its way
    mute      a response is lost on its way
    give up   the client gives up a request that is late, which makes two faults
    give in   the same of one whose response is lost
    front     something in front of the server refuses a request, which the server never sees
    unseen    the same, and says that the server has not seen it
    refuse    the server refuses a new request for its content
    break     a request fails when it runs
    expire    a result is dropped before it was fetched
    end       the session is ended
    cancel    the program cancels a request
    restart   the server is killed and starts again from its journal, or, without a journal, knows
              nothing; it costs one of the restarts, not a fault
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from simulation.loop import SimulatedLoop

from model.automaton import Automaton
from model.client import ENDS, Client, ClientView, Message, Phase, Result
from model.server import Server, ServerView


class Answer(NamedTuple):
    """A response on its way."""

    request: int
    status: int


class State(NamedTuple):
    """One state."""

    client: ClientView
    server: ServerView
    net: frozenset[Message] = frozenset()
    answers: frozenset[Answer] = frozenset()
    faults: int = 0
    restarts: int = 0


Move: TypeAlias = tuple[str, int]
Moves: TypeAlias = Iterator[tuple[Move, State]]


class World:
    """A program, and all that its client and its server can be in."""

    def __init__(
        self,
        program: str,
        loop: SimulatedLoop,
        *,
        is_journaled: bool = True,
        writes_first: bool = True,
    ) -> None:
        self.program = program
        self._client = Automaton(partial(Client, program, loop), ClientView)
        server = partial(Server, program, is_journaled=is_journaled, writes_first=writes_first)
        self._server = Automaton(server, ServerView)

    def start(self, *, faults: int, restarts: int) -> State:
        """Return the state before the first call."""
        return State(self._client.first, self._server.first, faults=faults, restarts=restarts)

    def _tell(self, state: State, event: str, *arguments: Any) -> State:
        """Let something happen to the client, which may send a message."""
        client = self._client.after(state.client, event, *arguments)
        is_new = client.message != state.client.message or event in ("answer", "give_up")
        net = state.net | {client.message} if is_new and client.message is not None else state.net
        return state._replace(client=client, net=net)

    def _serve(self, state: State, event: str, *arguments: Any) -> State:
        return state._replace(server=self._server.after(state.server, event, *arguments))

    # What happens without a fault

    def moves(self, state: State) -> Moves:
        """Return what may happen next without a fault."""
        yield from self._of_program(state)
        yield from self._of_client(state)
        yield from self._of_server(state)

    def _of_program(self, state: State) -> Moves:
        phases = state.client.phase
        if Phase.IDLE in phases:
            i = phases.index(Phase.IDLE)
            yield ("call", i), self._tell(state, "call", i)
        for i, phase in enumerate(phases):
            if phase in (Phase.FAILED, Phase.STOPPED) and not state.client.received >> i & 1:
                yield ("look", i), self._tell(state, "look", i)

    def _of_client(self, state: State) -> Moves:
        client, server = state.client, state.server
        for answer in state.answers:
            rest = state._replace(answers=state.answers - {answer})
            yield ("answer", answer.request), self._tell(rest, "answer", answer.status)
        for i, phase in enumerate(client.phase):
            if phase is Phase.CALLED:
                yield ("prepare", i), self._tell(state, "prepare", i)
            result: Result | int = server.results[i]
            if all(one.request != i for one in server.journal):
                result = 404
            elif i in server.gone:
                result = 410
            if phase is Phase.WAITING and not client.fetched >> i & 1 and result is not Result.NONE:
                yield ("fetch", i), self._tell(state, "fetch", i, result)

    def _of_server(self, state: State) -> Moves:
        for message in state.net:
            name = "arrive late" if message.late else "arrive"
            yield (name, message.request), self._arrive(state, "arrive", message)
        if state.server.next is not None:
            yield ("run", state.server.next), self._serve(state, "run")
        elif state.server.has_gap:
            yield ("gap", 0), self._serve(state, "give_up_gap")

    def _arrive(self, state: State, event: str, message: Message) -> State:
        state = self._serve(state._replace(net=state.net - {message}), event, message)
        if message.late:
            return state
        answer = Answer(message.request, state.server.answer)
        return state._replace(answers=state.answers | {answer})

    # Faults

    def faults(self, state: State) -> Moves:
        """Return what may go wrong next."""
        if state.restarts:
            yield ("restart", 0), self._restart(state._replace(restarts=state.restarts - 1))
        if state.faults:
            worse = state._replace(faults=state.faults - 1)
            for message in state.net:
                if not message.late:
                    yield from self._of_message(worse, message)
            for answer in state.answers:
                rest = worse._replace(answers=state.answers - {answer})
                yield ("mute", answer.request), self._tell(rest, "answer", 0)
                yield from self._give_up("give in", answer.request, rest)
            yield from self._of_parties(worse)

    def _of_message(self, state: State, message: Message) -> Moves:
        i, rest = message.request, state._replace(net=state.net - {message})
        late = rest._replace(net=rest.net | {message._replace(late=True)})
        yield ("drop", i), self._tell(rest, "answer", 0)
        yield ("delay", i), self._tell(late, "answer", 0)
        yield from self._give_up("give up", i, late)
        for name, status in (("front", 400), ("unseen", 403)):
            yield (name, i), rest._replace(answers=rest.answers | {Answer(i, status)})
        if all(one.request != i for one in state.server.journal):
            yield ("refuse", i), self._arrive(state, "refuse", message)

    def _give_up(self, name: str, i: int, state: State) -> Moves:
        """Give up a request of which something was lost, which is a second fault."""
        if state.faults:
            worse = state._replace(faults=state.faults - 1)
            yield (name, i), self._tell(worse, "give_up")

    def _of_parties(self, state: State) -> Moves:
        server = state.server
        for i, phase in enumerate(state.client.phase):
            if phase is not Phase.IDLE and phase not in ENDS:
                yield ("cancel", i), self._tell(state, "cancel", i)
            has_result = server.results[i] is not Result.NONE and i not in server.gone
            if phase is Phase.WAITING and has_result:
                yield ("expire", i), self._serve(state, "expire", i)
        if server.next is not None and server.next not in server.ran:
            yield ("break", server.next), self._serve(state, "run", True)
        if not server.is_over:
            yield ("end", 0), self._serve(state, "end_session")

    def _restart(self, state: State) -> State:
        """Kill the server and start it again. What is on its way breaks, and is sent again."""
        late = frozenset(one for one in state.net if one.late)
        state = self._serve(state._replace(net=late, answers=frozenset()), "restart")
        return state if state.client.message is None else self._tell(state, "answer", 0)
