"""The client of one run: its queue, its numbers and its attempts are those of `tinker`; what
carries them out, and the program, are here.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from functools import partial
from math import inf
from typing import Any, NamedTuple

import attrs
import httpx
from simulation.loop import SimulatedLoop

from tinker._http.retry import SUBMIT, RetrySettings
from tinker._http.submission import Fail, Findings, RefusedFields, Submission, Variant
from tinker._loop import loop_thread
from tinker._session.results import NotRunError
from tinker._training.order import Numbers, Sequencer, Turn
from tinker.errors import (
    APIConnectionError,
    APIError,
    PrecedingRequestFailed,
    RefusedResultError,
    RequestFailedError,
    status_error_type,
)
from tinker.futures import APIFuture, failure_of

CHANGES = "GS"
REQUEST = httpx.Request("POST", "http://server")


class Phase(Enum):
    """How far a request is, as its program sees it."""

    IDLE = "not called yet"
    CALLED = "called"
    PREPARED = "called, and ready to be sent"
    SENDING = "sent, and not answered"
    WAITING = "accepted"
    DONE = "done"
    STOPPED = "not sent, or not run, because of a failure before it"
    FAILED = "failed otherwise"
    CANCELLED = "cancelled"


class Result(Enum):
    """What the server keeps of a request."""

    NONE = "nothing yet"
    OK = "it has run"
    FAILED = "it failed when it ran"
    NOT_RUN = "it was not run, because of a failure before it"


#: Of a result; 410 for one that is no longer kept.
ERRORS: dict[Result | int, type[RequestFailedError]] = {
    Result.FAILED: RequestFailedError,
    Result.NOT_RUN: NotRunError,
    410: RefusedResultError,
}
ENDS = frozenset({Phase.DONE, Phase.STOPPED, Phase.FAILED, Phase.CANCELLED})


class Message(NamedTuple):
    """A request on its way. ``known`` is the number of the last failure that its caller knew of;
    ``late``: given up on.
    """

    request: int
    number: int
    known: int
    late: bool = False


@attrs.frozen(eq=False)
class ClientView:
    """What a client is in. Sets of requests are bit masks; tuples have one entry for each
    request.
    """

    phase: tuple[Phase, ...]
    seen: tuple[int, ...]  # the failures that the program had received when it called
    cause: tuple[int, ...]  # of what is STOPPED: the failure that stopped it, -1 if it is unknown
    received: int
    fetched: int
    message: Message | None  # under way
    rest: tuple[Any, ...]


class Client:
    """One run of a program."""

    def __init__(self, program: str, loop: SimulatedLoop) -> None:
        self._program, self._loop = program, loop
        self._order = Sequencer(Findings())
        self._futures: list[APIFuture[None]] = []
        self._called: list[int] = []
        self._seen: list[int] = []
        self._turns: dict[int, Turn] = {}
        self._is_prepared = [asyncio.Event() for _ in program]
        self._results = [loop.create_future() for _ in program]
        self._accepted: set[int] = set()
        self._submission: Submission | None = None
        self._message: Message | None = None
        self._answer: asyncio.Future[APIError | None] = loop.create_future()
        self._now = 0.0

    def settle(self) -> None:
        self._loop.run_until_complete(asyncio.sleep(0))
        while self._loop._ready:
            self._loop.run_until_complete(asyncio.sleep(0))

    def end(self) -> None:
        for task in tuple(loop_thread()._tasks):
            task.cancel()
        self.settle()
        for future in self._futures:
            future.receipt.mark_delegated()  # whose errors nobody will look at

    # Events

    def call(self, i: int) -> None:
        self._seen.append(self._received())
        self._called.append(self._order.now())
        self._futures.append(APIFuture(str(i)))
        loop_thread().start(self._futures[i], partial(self._request, i))

    def prepare(self, i: int) -> None:
        self._is_prepared[i].set()

    def answer(self, outcome: int) -> None:
        """The response to the attempt under way has a status; 0 where there is none."""
        self._answer.set_result(None if outcome == 200 else _to_error(outcome))

    def give_up(self) -> None:
        self._now = inf
        self.answer(0)

    def fetch(self, i: int, result: Result | int) -> None:
        """The result of an accepted request arrives, or a status in its place."""
        if result is Result.OK:
            self._results[i].set_result(None)
        elif result == 404:
            self._results[i].set_exception(_to_error(404))
        else:
            error = ERRORS[result]("it broke", str(i), "user")
            if isinstance(error, NotRunError):
                error.failed_operation = "-1"
            self._results[i].set_exception(error)

    def look(self, i: int) -> None:
        self._futures[i].exception(0)

    def cancel(self, i: int) -> None:
        self._futures[i].cancel()

    # What it does

    async def _request(self, i: int) -> None:
        changes_run = self._program[i] in CHANGES
        turn = self._turns[i] = self._order.take_turn(
            self._futures[i], self._called[i], changes_run=changes_run
        )
        with turn.preparation():
            await self._is_prepared[i].wait()
        async with turn as numbers:
            await self._submit(i, turn, numbers)
        async with turn.result():
            await self._results[i]

    async def _submit(self, i: int, turn: Turn, numbers: Numbers) -> None:
        self._submission = Submission(
            str(i),
            SUBMIT,
            RetrySettings(),
            0.0,
            lambda: 0.0,
            RefusedFields(),
            number=next(numbers),
            numbers=numbers,
        )
        sent = self._submission.send()
        while (error := await self._attempt(i, sent, turn)) is not None:
            step = self._submission.fail(error, sent, None, self._now)
            if isinstance(step, Fail):
                raise step.error
            sent = step if isinstance(step, Variant) else self._submission.send()
        self._submission.accept()
        self._accepted.add(i)

    async def _attempt(self, i: int, sent: Variant, turn: Turn) -> APIError | None:
        self._message = Message(i, sent.number, turn.target.known_failure)
        self._now, self._answer = 0.0, self._loop.create_future()
        try:
            return await self._answer
        finally:
            self._message = None

    # What it is in

    def facts(self) -> tuple[Any, ...]:
        phases = [self._phase(i) for i in range(len(self._program))]
        fetched = sum(one.done() << i for i, one in enumerate(self._results))
        causes = [self._cause(i) for i in range(len(self._futures))]
        return (
            tuple(phases),
            tuple(self._seen),
            tuple(causes),
            self._received(),
            fetched,
            self._message,
            self._rest(),
        )

    def _received(self) -> int:
        return sum(one.receipt.is_received << i for i, one in enumerate(self._futures))

    def _phase(self, i: int) -> Phase:
        if i >= len(self._futures):
            return Phase.IDLE
        future = self._futures[i]
        if future.cancelled():
            return Phase.CANCELLED
        if future.done():
            error = failure_of(future)
            is_stopped = isinstance(error, PrecedingRequestFailed)
            return Phase.DONE if error is None else Phase.STOPPED if is_stopped else Phase.FAILED
        if i in self._accepted:
            return Phase.WAITING
        if self._message is not None and self._message.request == i:
            return Phase.SENDING
        return Phase.PREPARED if self._is_prepared[i].is_set() else Phase.CALLED

    def _cause(self, i: int) -> int:
        error = failure_of(self._futures[i])
        return int(error.failed_operation) if isinstance(error, PrecedingRequestFailed) else -1

    def _rest(self) -> tuple[Any, ...]:
        """Return what else decides how it goes on."""
        order, numbers, sending = self._order, self._order.numbers, self._submission
        blocks = [
            (
                one.position,
                one.number,
                one.received is not None,
                *(one.received is not None and one.received <= called for called in self._called),
            )
            for one in order._blocks
        ]
        behind = [
            (i, None if turn.behind is None else turn.behind.position)
            for i, turn in self._turns.items()
            if not self._futures[i].done()
        ]
        attempts = None
        if sending is not None and self._message is not None:
            retries = sending._retries
            has_arrived = retries is not None and retries._may_have_arrived
            attempts = sending.number, has_arrived, frozenset(sending._tried)
        return (
            *(numbers.next, numbers.expected, order.known_failure, attempts),
            *(frozenset(numbers._refused), frozenset(numbers._reused)),
            *(tuple(blocks), tuple(behind)),
        )


def _to_error(status: int) -> APIError:
    if status == 0:
        return APIConnectionError(request=REQUEST)
    response = httpx.Response(status, request=REQUEST)
    return status_error_type(status)(f"Error code: {status}", response=response, body="no")
