"""The server of one run: its queue and its futures are those of `tinker.local`; the journal that it
starts from again is here.
"""

from __future__ import annotations

import threading
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs

from model.client import Message, Result
from tinker.local import Settings
from tinker.local.call import APIProblem
from tinker.local.engines.protocol import EngineError
from tinker.local.handlers.common import enqueue_idempotent
from tinker.local.scheduling import EngineStep, ModelQueue
from tinker.local.storage.futures import (
    FutureStore,
    RequestFailure,
    RequestOutcome,
    ServerFuture,
    request_key,
    split_request_key,
)

OPERATIONS = {"G": "forward_backward", "S": "optim_step", "V": "save_weights"}
SETTINGS = Settings(data_dir=Path("nowhere"), gap_seconds=1.0)


class Accepted(NamedTuple):
    """A request that the server has written into its journal."""

    number: int
    request: int
    known: int


@attrs.frozen(eq=False)
class ServerView:
    """What a server is in."""

    journal: tuple[Accepted, ...]
    results: tuple[Result, ...]
    gone: frozenset[int]  # requests whose results are no longer kept
    applied: tuple[int, ...]  # requests in the order in which they took effect
    ran: frozenset[int]  # requests that have run well, perhaps before a restart
    bad: frozenset[int]  # requests that it refuses for their content
    is_over: bool  # the session has ended, or is forgotten
    answer: int  # to the last request that arrived
    next: int | None  # the request that can run
    has_gap: bool  # a number is missing
    rest: tuple[Any, ...]


class Server:
    """The server of a program. Its queue takes it for the state of a server."""

    settings = SETTINGS
    repeating = None
    journal = SimpleNamespace(is_kept=False)

    def __init__(self, program: str, *, is_journaled: bool, writes_first: bool) -> None:
        self._program, self._is_journaled, self._writes_first = program, is_journaled, writes_first
        self._journal: list[Accepted] = []
        self._unwritten: set[int] = set()
        self._outcomes: dict[int, RequestOutcome] = {}  # by number
        self._gone: set[int] = set()
        self._applied: list[int] = []
        self._ran: set[int] = set()
        self._bad: set[int] = set()
        self._kept = 0  # the number of the last step, up to which the weights are on disk
        self._settled = 0  # a number before which those that are missing were given up
        self._is_over = self._is_breaking = False
        self._answer = 0
        self._open()

    def _open(self) -> None:
        self.futures = FutureStore(SETTINGS, threading.RLock(), self.clock, self)  # type: ignore[arg-type]
        self._queue = ModelQueue(self.futures, SETTINGS.gap_seconds)
        self._queue.start_at(1)
        self._step: EngineStep | None = None
        session = SimpleNamespace(new_span=lambda *_: None)
        self._model: Any = SimpleNamespace(
            model_id="run", queue=self._queue, session=session, engine_model="toy"
        )

    # What the queue needs of a state

    def clock(self) -> float:
        return 0.0

    now = clock

    def notify(self) -> None: ...

    require_open = end = notify

    def settle(self) -> None:
        """Take the next step, as the engine's thread does when it has none."""
        if self._step is None:
            step = self._queue.take(0.0)
            self._step = None if step is _close else step

    def handle_result(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        self._outcomes[_number(future.key)] = outcome

    def handle_gap(self, future: ServerFuture) -> None:
        self._settled = max(self._settled, _number(future.key))

    def handle_dropped_result(self, request_id: str) -> None:
        self._gone.add(_number(request_id))

    # Events

    def arrive(self, message: Message) -> None:
        self._answer = self._take(message) if not self._is_over else 404

    def refuse(self, message: Message) -> None:
        """Refuse a request for its content, whenever it comes."""
        self._bad.add(message.request)
        self.arrive(message)

    def run(self, breaks: bool = False) -> None:
        """Carry out the step."""
        self._is_breaking, step, self._step = breaks, self._step, None
        assert step is not None
        step(lambda: None)  # type: ignore[arg-type, return-value]

    def give_up_gap(self) -> None:
        """Wait no longer for a number that is missing."""
        self._step = self._queue.take(inf)

    def expire(self, i: int) -> None:
        number = next(one.number for one in self._journal if one.request == i)
        self.futures.release(request_key("run", number))

    def end_session(self) -> None:
        """End the session: what can run runs, the rest fails."""
        self._is_over = True
        self._queue.close(RequestFailure("the session has ended", "user"), _close)

    def restart(self) -> None:
        """Be killed and start again: from the journal, behind the last step, with the gradients
        that come after it.
        """
        self._unwritten, unwritten = set(), self._unwritten
        journal, self._journal = self._journal, []
        outcomes, self._outcomes = self._outcomes, {}
        gone, self._gone = self._gone, set()
        self._open()
        if self._is_over or not self._is_journaled:
            self._is_over, self._applied = True, []
            return
        numbers = {one.request: one.number for one in journal}
        self._applied = [i for i in self._applied if numbers[i] <= self._kept]
        self._queue.start_at(self._kept + 1)
        for one in journal:
            if one.request in unwritten:
                continue
            outcome, is_behind = outcomes.get(one.number), one.number > self._kept
            has_failed = isinstance(outcome, RequestFailure)
            is_repeated = self._program[one.request] == "G" or one.number in gone
            if outcome is None or (is_behind and not has_failed and is_repeated):
                self._take(Message(one.request, one.number, one.known))
                continue
            self._journal.append(one)
            key, failure = request_key("run", one.number), outcome if has_failed else None
            self._outcomes[one.number] = outcome
            self.futures.restore(key, _fingerprint(one.request), outcome)
            if one.number in gone:
                self.futures.release(key)
            self._queue.skip(one.number, 0.0, OPERATIONS[self._program[one.request]], failure)
        self._queue.settle(self._settled, 0.0)

    # What it does

    def _take(self, message: Message) -> int:
        i, number = message.request, message.number
        operation = OPERATIONS[self._program[i]]
        call: Any = SimpleNamespace(name=operation, known_failure=message.known)
        try:
            enqueue_idempotent(
                self,  # type: ignore[arg-type]
                call,
                self._model,
                number,
                _fingerprint(i),
                partial(self._execute, i, number),
                check=partial(self._check, i),
            )
        except APIProblem as problem:
            return problem.status
        if all(one.number != number for one in self._journal):
            self._journal.append(Accepted(number, i, message.known))
            if not self._writes_first:
                self._unwritten.add(i)
        return 200

    def _check(self, i: int) -> None:
        if i in self._bad:
            raise APIProblem(400, "no")

    def _execute(self, i: int, number: int, _: object) -> Any:
        self._unwritten.discard(i)
        self._queue.require_success()
        if self._is_breaking:
            raise EngineError("it broke")
        self._ran.add(i)
        if self._program[i] in "GS":
            self._applied.append(i)
        if self._program[i] == "S":
            self._kept = number
        return "done"

    # What it is in

    def facts(self) -> tuple[Any, ...]:
        queue = self._queue
        waiting = sorted((number, type(one)) for number, one in queue._waiting.items())
        failure, refusal, running = queue._last_failure, queue._last_refusal, queue._running
        numbers = {one.request: one.number for one in self._journal}
        given_up = frozenset(range(self._kept + 1, self._settled)).difference(numbers.values())
        rest = (
            *(queue._next, tuple((number, kind.__name__) for number, kind in waiting), self._kept),
            *(
                max(queue._next, queue._settled),
                given_up,
                running and running.number + 1 == queue._next,
            ),
            *(failure and failure.number, refusal and refusal[:2], frozenset(self._unwritten)),
        )
        return (
            tuple(self._journal),
            tuple(self._result(numbers.get(i)) for i in range(len(self._program))),
            frozenset(i for i, number in numbers.items() if number in self._gone),
            tuple(self._applied),
            frozenset(self._ran),
            frozenset(self._bad),
            *(self._is_over, self._answer),
            *(self._find_next(), self._step is None and queue._gap_ends is not None, rest),
        )

    def _result(self, number: int | None) -> Result:
        outcome = self._outcomes.get(number or 0)
        if not isinstance(outcome, RequestFailure):
            return Result.NONE if outcome is None else Result.OK
        return Result.FAILED if outcome.failed_operation is None else Result.NOT_RUN

    def _find_next(self) -> int | None:
        running = self._queue._running
        if self._step is None or running is None:
            return None
        return next(one.request for one in self._journal if one.number == running.number)


def _close(_: object) -> None:
    """The last step of a session's queue."""


def _fingerprint(i: int) -> bytes:
    return b"%d" % i


def _number(key: str) -> int:
    return split_request_key(key)[1] or 0
