"""A trace of the model with the real client and the real server: every message waits until the
trace says that it goes on.

After each move the client's futures, the messages on their way and the weights' history are those
of the model's state.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulation import server as server_module
from simulation.effects import LEARNING_RATE, EffectLog
from simulation.loop import SimulatedLoop
from simulation.network import ORIGIN, ReceivedHeaders
from simulation.server import Idle, LoopWorker, Request, Response, SimulatedServer
from simulation.user import datum

import tinker
from model.faults import fault_moves
from model.protocol import Move, Phase, State, moves, sender, start
from tinker import _runtime
from tinker._http.messages import ExchangeFailed, PreparedRequest, RawResponse
from tinker._loop import Clock
from tinker._wire import proto

WAIT_SECONDS = 0.001  # of simulated time, until what a move leads to has happened
# requests before the trace: one settles the form of the others, and a step keeps the weights
WARM_UP = 2
NUMBERED = {"forward_backward": "G", "optim_step": "S", "save_weights": "V"}
MOVES = {"run": "take_step", "break": "take_step"}
#: What the traces have no use for here: late messages and time limits are left to the simulation.
LEFT_OUT = ("delay", "give up", "gap", "end", "drop late", "arrive late", "refuse")
ERRORS = {
    Phase.STOPPED: tinker.PrecedingRequestFailed,
    Phase.REFUSED: tinker.BadRequestError,
    Phase.UNSEEN: tinker.PermissionDeniedError,
    Phase.UNKNOWN: tinker.APIError,
    Phase.FAILED: tinker.RequestFailedError,
    Phase.EXPIRED: tinker.APIStatusError,
}


def draw_trace(
    program: str, draw: random.Random, *, faults: int, restarts: int
) -> list[tuple[Move, State]]:
    """Draw a way through the model, on which a request is sent as soon as its turn has come; V does
    not fail by itself.
    """
    state, trace = start(program, faults=faults, restarts=restarts), list[tuple[Move, State]]()
    while True:
        found = [*moves(program, state), *fault_moves(program, state)]
        possible = [
            (move, after)
            for move, after in found
            if move[0] not in LEFT_OUT and not _is_other(program, move)
        ]
        if not possible:
            return trace
        move, state = draw.choice(possible)
        state = send_all(program, state)
        trace.append((move, state))


def _is_other(program: str, move: Move) -> bool:
    return move[0] == "send" or (move[0] == "break" and program[move[1]] == "V")


def send_all(program: str, state: State) -> State:
    """Send what can be sent, as the client does at once."""
    while (i := sender(state)) is not None and state.phase[i] is Phase.CALLED:
        state = next(after for move, after in moves(program, state) if move == ("send", i))
    return state


class ManualWorker(LoopWorker):
    """The engine's thread, which takes a step of a queue only when it is told to; tasks of no queue
    run at once.
    """

    is_manual = False

    def notify(self) -> None:
        while self.is_manual and self._tasks:
            self.take_step()
        if not self.is_manual:
            super().notify()

    def take_step(self) -> None:
        try:
            found = self._next()
        except Idle:
            return
        if found is not None:
            self._carry_out(*found)


class Held:
    """An exchange that waits."""

    def __init__(self, request: PreparedRequest, loop: SimulatedLoop) -> None:
        self.request = request
        self.outcome: asyncio.Future[Response] = loop.create_future()


class Replay:
    """The client, the server and the messages between them. It is the client's HTTP engine."""

    def __init__(self, loop: SimulatedLoop, folder: Path, program: str) -> None:
        self.loop, self.program = loop, program
        self.effects = EffectLog()
        self.server = SimulatedServer(
            loop, folder, self.effects, durability="step", hold_seconds=0.0
        )
        self.held: list[Held] = []
        self.is_holding = False
        self.futures: list[Any] = []
        self.answers: dict[int, tuple[Held, Response]] = {}

    # The HTTP engine

    async def send(self, request: PreparedRequest) -> RawResponse:
        held = Held(request, self.loop)
        if self.is_holding and request.operation in (*NUMBERED, "retrieve_future"):
            self.held.append(held)
        else:
            self._forward(held, lambda response: held.outcome.set_result(response))
        response = await held.outcome
        return RawResponse(
            request, response.status, ReceivedHeaders(response.headers), response.content
        )

    async def aclose(self) -> None:
        return

    def describe(self) -> list[Any]:
        return []

    def _forward(self, held: Held, done: Any) -> None:
        request = held.request
        body = bytes(b"".join(request.body))
        call = Request(
            request.method,
            request.url.removeprefix(ORIGIN),
            request.headers,
            body,
            request.operation,
        )
        self.server.begin(call, done)

    # The trace

    async def run(self, trace: list[tuple[Move, State]]) -> None:
        """Make every move, and compare after each."""
        await self._start()
        clock = Clock(
            monotonic=self.loop.time, wall=self.loop.time, sleep=asyncio.sleep, random=lambda: 0.99
        )
        service = tinker.ServiceClient(base_url=ORIGIN, api_key="tml-model", clock=clock)
        self.client = service.create_lora_training_client("tinker/toy", rank=1, seed=1)
        await self.client.forward([datum(1)], "cross_entropy")
        await self.client.optim_step(tinker.AdamParams(learning_rate=0.0))
        self.is_holding, self._worker.is_manual = True, True
        self.broken = {move[1] for move, _ in trace if move[0] == "break"}
        done: list[Move] = []
        for move, state in trace:
            done.append(move)
            await getattr(self, MOVES.get(move[0], move[0]))(move[1])
            await asyncio.sleep(WAIT_SECONDS)
            self.compare(state, done)

    async def _start(self) -> None:
        before, server_module.LoopWorker = server_module.LoopWorker, ManualWorker  # type: ignore[misc]
        ManualWorker.is_manual = self.is_holding
        try:
            await self.server.start()
        finally:
            server_module.LoopWorker = before  # type: ignore[misc]
        assert self.server.state is not None
        self._worker: Any = self.server.state._worker

    def compare(self, state: State, done: list[Move]) -> None:
        """Fail unless the client and the server are in the model's state."""
        for i, (phase, future) in enumerate(zip(state.phase, self.futures)):
            assert self._is_in(phase, future), (
                f"request {i} should be {phase.name}: {future!r} after {done}"
            )
        messages = {(number, known) for _, number, known, _ in state.net}
        found = {_number(one.request) for one in self.held if one.request.operation in NUMBERED}
        found -= {_number(held.request) for held, _ in self.answers.values()}
        assert found == messages, f"{found} should be under way, {messages} are, after {done}"
        effects = next(iter(self.effects.of_adapter.values()))
        applied = tuple(number // 8 - 1 for _, number in effects.tags if number)
        assert applied == state.applied, (
            f"{applied} took effect, {state.applied} should have, after {done}"
        )

    def _is_in(self, phase: Phase, future: Any) -> bool:
        if phase <= Phase.WAITING:
            has_id = future.request_id is not None
            return not future.done() and has_id == (phase is Phase.WAITING)
        if phase is Phase.CANCELLED or future.cancelled():
            return phase is Phase.CANCELLED and future.cancelled()
        error = future._exception
        return future.done() and (
            error is None if phase is Phase.DONE else isinstance(error, ERRORS[phase])
        )

    # Moves

    async def call(self, i: int) -> None:
        tag, kind = 8 * (i + 1), self.program[i]
        if kind == "G":
            self.futures.append(
                self.client.forward_backward(
                    [datum(2_000_000 if i in self.broken else tag)], "cross_entropy"
                )
            )
        elif kind == "S":
            clip = -1.0 if i in self.broken else 0.0
            params = tinker.AdamParams(learning_rate=tag * LEARNING_RATE)
            object.__setattr__(params, "grad_clip_norm", clip)
            self.futures.append(self.client.optim_step(params))
        else:
            self.futures.append(self.client.save_state(f"save-{i}"))

    async def look(self, i: int) -> None:
        self.futures[i].exception(0)

    async def cancel(self, i: int) -> None:
        self.futures[i].cancel()

    def _submission(self) -> Held:
        """Return the submission under way; there is one at most."""
        (held,) = [one for one in self.held if one.request.operation in NUMBERED]
        return held

    async def arrive(self, i: int) -> None:
        held = self._submission()
        self._forward(held, lambda response: self.answers.update({i: (held, response)}))

    async def answer(self, i: int) -> None:
        held, response = self.answers.pop(i)
        self._end(held, response)

    def _end(self, held: Held, response: Response | None) -> None:
        self.held.remove(held)
        if response is None:
            held.outcome.set_exception(ExchangeFailed("the connection broke"))
        else:
            held.outcome.set_result(response)

    async def drop(self, i: int) -> None:
        self._end(self._submission(), None)

    async def mute(self, i: int) -> None:
        self._end(self.answers.pop(i)[0], None)

    async def front(self, i: int) -> None:
        """The refusal is on its way: the client has it with the move `answer`."""
        self.answers[i] = self._submission(), _refusal(400)

    async def unseen(self, i: int) -> None:
        self._end(self._submission(), _refusal(403))

    async def again(self, i: int) -> None:
        await self._wait_for(lambda one: one.request.operation in NUMBERED)

    async def _wait_for(self, is_it: Callable[[Held], bool]) -> Held:
        """Return the exchange for which the client pauses, as it does before another attempt."""
        for _ in range(600):
            if (found := next(filter(is_it, self.held), None)) is not None:
                return found
            await asyncio.sleep(0.05)
        raise AssertionError("the client does not send it")

    async def take_step(self, _: int) -> None:
        self._worker.take_step()

    async def expire(self, i: int) -> None:
        assert self.server.state is not None
        self.server.state.futures.release(self.futures[i].request_id)

    async def fetch(self, i: int) -> None:
        wanted = self.futures[i].request_id
        held = await self._wait_for(
            lambda one: getattr(one.request.record, "request_id", "") == wanted
        )
        self._forward(held, lambda response: self._end(held, response))

    async def restart(self, _: int) -> None:
        """Kill the server and start it again; what is under way breaks, polls too, which the client
        repeats.
        """
        self.server.kill()
        self.answers.clear()
        for held in tuple(self.held):
            self._end(held, None)
        await self._start()


def _refusal(status: int) -> Response:
    return Response(status, {"content-type": "application/json"}, b'{"detail":"no"}')


def _number(request: PreparedRequest) -> tuple[int, int]:
    """Return the number and the known failure of a request as the model counts."""
    known = int(request.headers["X-Tinker-Known-Failure"])
    record: Any = request.record
    number = (
        proto.decode_forward_backward(b"".join(request.body)).seq_id
        if record is None
        else record.seq_id
    )
    return number - WARM_UP, known and known - WARM_UP


def replay(
    loop: SimulatedLoop, folder: Path, program: str, trace: list[tuple[Move, State]]
) -> None:
    """Make the moves of a trace with the real client and server."""
    this = Replay(loop, folder, program)
    before, _runtime.open_engine = _runtime.open_engine, lambda *_, **__: this  # type: ignore[assignment]
    try:
        loop.run_until_complete(this.run(trace))
    finally:
        _runtime.open_engine = before
