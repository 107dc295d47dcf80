"""The order of one run's requests, their numbers, and what a failure stops. On the loop only."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import msgspec

from tinker._futures import Receipt
from tinker._http import retry
from tinker._http.submission import Findings
from tinker._session.results import NotRunError
from tinker.errors import (
    APIStatusError,
    PrecedingRequestFailed,
    RefusedResultError,
    RequestFailedError,
    SessionLostError,
    TinkerError,
    copy_error,
)
from tinker.futures import APIFuture

FIRST_NUMBER = 1  # creation is implicitly 0
_EXPECTED = re.compile(r"expected\D{0,20}(\d+)\D{1,20}got\D{0,20}(\d+)", re.IGNORECASE)


class RunTarget(msgspec.Struct, frozen=True):
    """Which model a request is for, and the number of the last failure of the run that its caller
    knew of; 0 for none.
    """

    model_id: str
    known_failure: int = 0


class Numbers(Iterator[int]):
    """The sequence numbers of one run: the next one, the refused ones, and those to use again."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.next: int = FIRST_NUMBER  # of the next request
        # read by the server, and not carried out as far as is known
        self._refused: set[int] = set()
        self._reused: set[int] = set()  # in use again, as the server seemed not to have seen them
        #: The number that the server expects, as it refused the results of others for theirs; None
        #: once it was sent.
        self.expected: int | None = None

    def __next__(self) -> int:
        self.next += 1
        return self.next - 1

    def take(self, count: int = 1) -> int:
        """Return the first of the next ``count`` numbers, which are used now."""
        first = self.next
        self.next += count
        return first

    def accept(self, number: int) -> None:
        """Note that the server has the request of this number."""
        self._refused.discard(number)
        self._reused.discard(number)

    def expect(self, last: int, error: Exception) -> bool:
        """Return whether the result of a request, whose last number was ``last``, says that the
        server expects a refused one.

        Nothing numbered later has run then. The next request gets the expected number, after
        :meth:`restart`.
        """
        conflict = _find_conflict(error)
        if (
            conflict is None
            or not conflict[0] < conflict[1] <= last
            or conflict[0] not in self._refused
        ):
            return False
        self.expected = conflict[0]
        self._note_expected(*conflict)
        return True

    def restart(self) -> None:
        """Continue with the number that the server expects, if a result has said so; no other
        request is under way.
        """
        if self.expected is not None:
            self.next, self.expected = self.expected, None

    def abandon(self, first: int, outcomes: Sequence[object]) -> None:
        """Settle requests that were sent together, numbered from ``first``, and failed at least in
        part.

        ``outcomes`` are in the order of the numbers: an exception for each that failed, None for
        one that was not sent.
        """
        if all(
            outcome is None
            or (isinstance(outcome, Exception) and retry.fate_of(outcome) is retry.Fate.UNSEEN)
            for outcome in outcomes
        ):
            self.next = first
            self._reused.update(range(first, first + len(outcomes)))
            return
        self._refused.update(
            first + i
            for i, outcome in enumerate(outcomes)
            if outcome is None or isinstance(outcome, Exception)
        )

    def renumber(self, number: int, error: Exception) -> int | None:
        """Settle ``number`` after a failure, and return the number to send the same request under,
        if there is one.
        """
        fate = retry.fate_of(error)
        if fate is retry.Fate.UNSEEN:
            self.next = number
            self._reused.add(number)
            return None
        self._refused.add(number)
        if fate is not retry.Fate.REFUSED:
            return None
        expected = _find_expected_number(error, number)
        if expected is not None and (expected > number or expected in self._refused):
            self._refused.discard(number)
            self.next = expected + 1
            self._note_expected(expected, number)
            return expected
        return next(self) if number in self._reused else None  # the server has seen it after all

    def _note_expected(self, expected: int, number: int) -> None:
        answer = f"expected {expected}, got {number}"
        self._findings.note(
            "numbers", "training requests", "the number of a refused request is used again", answer
        )


def _find_expected_number(error: Exception, number: int) -> int | None:
    """Return the number that the server says it expects in place of ``number``."""
    expected, got = _find_conflict(error) or (number, number)
    return expected if got == number != expected else None


def _find_conflict(error: Exception) -> tuple[int, int] | None:
    """Return the number that the server says it expects, and the one that it got."""
    found = (
        _EXPECTED.search(str(error))
        if isinstance(error, (APIStatusError, RequestFailedError))
        else None
    )
    return None if found is None else (int(found[1]), int(found[2]))


logger = logging.getLogger("tinker")
Explain: TypeAlias = Callable[[Exception], Awaitable[Exception | None]]
"""Returns the error that a failure means, such as the loss of the session; None if it means what it
says.
"""


class Sequencer:
    """The queue of one training client."""

    def __init__(self, findings: Findings) -> None:
        self.numbers = Numbers(findings)
        self.explain: Explain | None = None  # once there is a session
        self.model_id = ""  # before the model exists, nothing is sent
        # one for each turn, in their order; that of the first is set
        self._queue: deque[asyncio.Event] = deque()
        self._left: set[asyncio.Event] = set()  # finished ones after an unfinished one
        self._positions = itertools.count()
        #: Returns the moment of a call or of a receipt, to compare with others; from any thread.
        self.now: Callable[[], int] = itertools.count().__next__
        self._blocks: list[Block] = []
        # of operations that are not over, by their positions, in order
        self._turns = weakref.WeakValueDictionary[int, Turn]()
        #: The last number under which a request failed and the user has the error; 0 for none.
        self.known_failure = 0
        self._ended: tuple[Receipt, BaseException] | None = None

    def take_turn(self, future: APIFuture[Any], called: int, *, changes_run: bool = True) -> Turn:
        """Return the next turn in the queue, of an operation that was called at the moment
        ``called``.
        """
        turn = Turn(self, future, next(self._positions), called, changes_run)
        self._turns[turn.position] = turn
        self._queue.append(turn.has_come)
        self._queue[0].set()
        return turn

    def leave(self, turn: Turn) -> None:
        """End a turn; the next one comes as soon as every earlier one is over."""
        self._left.add(turn.has_come)
        while self._queue and self._queue[0] in self._left:
            self._left.remove(self._queue.popleft())
        if self._queue:
            self._queue[0].set()

    def end(self, creation: APIFuture[Any], error: BaseException) -> None:
        """Fail every later turn with ``error``: there is no run."""
        self._ended = creation.receipt, error

    def end_without_model(self, creation: APIFuture[None]) -> None:
        """End the run if its creation was cancelled, perhaps before it began."""
        if creation.cancelled():
            self.end(creation, asyncio.CancelledError())

    def block(self, turn: Turn, error: BaseException) -> None:
        """Block later requests until the user has received the error from the
        future of this one.
        """
        block = Block(self, turn, error)
        self._blocks.append(block)
        turn.future.receipt.add_action(block.receive)
        for later in self._turns.values():
            if later.position > turn.position and (
                later.behind is None or later.behind.position > turn.position
            ):
                later.behind, later.receipt_behind = block, turn.future.receipt

    def is_settled(self, turn: Turn, error: BaseException) -> bool:
        """Return whether everything before a failed request has an outcome: the server has run it,
        or nothing is awaited.
        """
        was_run = isinstance(error, RequestFailedError) and not isinstance(
            error, RefusedResultError
        )
        return was_run or all(one.future.done() for one in self._find_earlier(turn))

    async def fail(self, turn: Turn, error: Exception, *, stops: bool) -> None:
        """Note the failure of a request; if it ``stops`` later ones, it does so until the user has
        its error.

        Raises another error in the place of ``error`` where that is what it means.
        """
        if isinstance(error, NotRunError):
            raise await self.explain_stop(turn, error)
        self.numbers.expect(turn.last_number, error)
        meaning = None if self.explain is None else await self.explain(error)
        if stops:
            self.block(turn, meaning or error)
        if meaning is not None:
            raise meaning from error

    def check(self, turn: Turn) -> None:
        """Raise the error that keeps a request from being sent when its turn comes."""
        if self._ended is not None:
            receipt, error = self._ended
            turn.future.receipt.share(receipt.mark_received)
            raise _add_note(copy_error(error))
        received = [
            block
            for block in self._blocks
            if block.received is not None and block.received <= turn.called
        ]
        self.known_failure = max([self.known_failure, *(block.number for block in received)])
        self._blocks = [block for block in self._blocks if block not in received]
        block = next((block for block in self._blocks if block.position < turn.position), None)
        if block is not None:
            raise block.stop(turn.future, "sent")

    def can_repeat(self, turn: Turn, error: Exception) -> bool:
        """Return whether to send a request again whose result says that its number was not the
        expected one.

        It is if no other request of the run is under way, so that the order stays that of the
        calls. Otherwise the server refuses those too, and the next request gets the expected
        number.
        """
        has_later = self.numbers.next != turn.last_number + 1 or self.numbers.expected is not None
        is_alone = not has_later and all(one.future.done() for one in self._find_earlier(turn))
        if not self.numbers.expect(turn.last_number, error) or not is_alone:
            return False
        self.numbers.restart()
        return True

    async def restart(self, turn: Turn) -> None:
        """Continue with the number that the server expects, once everything before this is over."""
        for earlier in self._find_earlier(turn):
            await earlier.future.wait()
        self.numbers.restart()

    async def explain_stop(self, turn: Turn, reason: NotRunError) -> BaseException:
        """Return the error of a request that the server did not run, once everything before it is
        over.

        Without a failure before it, that one's future was cancelled, and the request itself stops
        later ones.
        """
        for earlier in self._find_earlier(turn):
            await earlier.future.wait()
        if turn.behind is not None:
            return turn.behind.stop(turn.future, "run")
        operation, failed = turn.future.operation, reason.failed_operation
        error = PrecedingRequestFailed(
            f"{operation} was not run, because the {failed} before it failed", operation, failed
        )
        error.__cause__ = reason
        self.block(turn, error)
        return error

    def _find_earlier(self, turn: Turn) -> list[Turn]:
        return [one for one in self._turns.values() if one.position < turn.position]


def _add_note(error: BaseException) -> BaseException:
    error.add_note("The training client could not be created, so its requests were not sent.")
    return error


class Turn:
    """One operation's turn: ``async with turn`` waits for it, and holds it while the block sends.

    What has begun to be sent is sent to the end, also when the future is cancelled.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        future: APIFuture[Any],
        position: int,
        called: int,
        changes_run: bool,
    ) -> None:
        self._sequencer = sequencer
        self.has_come = asyncio.Event()
        self._changes_run = changes_run
        self.future = future
        self.position = position
        self.called = called
        self.behind: Block | None = None
        #: Keeps the receipt of the failure in ``behind`` alive.
        self.receipt_behind: Receipt | None = None
        self.target = RunTarget("")  # set when the turn comes
        self._first_number: int | None = None
        self._last_number = 0

    @property
    def last_number(self) -> int:
        """Return the last number that it has taken; 0 while there is none."""
        following = self._sequencer.numbers.next
        return (
            following - 1
            if self._first_number is not None and self._first_number < following
            else self._last_number
        )

    @contextmanager
    def preparation(self) -> Generator[None]:
        """Prepare the request in the block, before the turn. On failure, release the turn."""
        try:
            yield
        except BaseException as error:
            if self._changes_run and isinstance(error, Exception):
                self._sequencer.block(self, error)
            self.leave()
            raise

    async def __aenter__(self) -> Numbers:
        try:
            await self.has_come.wait()
            if self._sequencer.numbers.expected is not None:
                await self._sequencer.restart(self)
            self._sequencer.check(self)
        except BaseException:
            self.leave()
            raise
        self.future.progress.is_sending = True
        self.target = RunTarget(self._sequencer.model_id, self._sequencer.known_failure)
        self._first_number = self._sequencer.numbers.next
        return self._sequencer.numbers

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if isinstance(error, Exception):
                stops = self._changes_run or retry.fate_of(error) is retry.Fate.UNKNOWN
                await self._sequencer.fail(self, error, stops=stops)
        finally:
            self.future.progress.is_sending = False
            self.leave()
        if error is None:
            self._check_cancelled()

    def leave(self) -> None:
        """Let the next turn come, as soon as every earlier one is done."""
        self._last_number, self._first_number = self.last_number, None
        self._sequencer.leave(self)

    @asynccontextmanager
    async def result(self) -> AsyncGenerator[None]:
        """Wait for a submitted request in the block; record a failure."""
        try:
            yield
        except asyncio.CancelledError:
            self._check_cancelled()
            raise
        except Exception as error:
            await self._sequencer.fail(self, error, stops=self._changes_run)
            raise
        self._check_cancelled()  # the result may have been faster

    @contextmanager
    def resending(self) -> Generator[None]:
        """Send again in the block, after the turn."""
        self.future.progress.is_sending = True
        try:
            yield
        finally:
            self.future.progress.is_sending = False
        self._check_cancelled()  # sooner than after the result

    def _check_cancelled(self) -> None:
        """End an accepted request whose future was cancelled; warn where it changes the run all the
        same.
        """
        if self.future.cancelled():
            if self._changes_run:
                logger.warning(
                    "%s was cancelled after the server had accepted it%s: it still takes effect, "
                    "so do not repeat it",
                    self.future.operation,
                    f" ({one})" if (one := self.future.request_id) else "",
                )
            raise asyncio.CancelledError


class Block:
    """A failure that stops later requests until it is received."""

    def __init__(self, sequencer: Sequencer, turn: Turn, error: BaseException) -> None:
        self._now = sequencer.now
        self._operation = turn.future.operation
        # weak: a failure that is never read is logged when dropped
        self._receipt = weakref.ref(turn.future.receipt)
        # without the traceback, which holds the future and the data
        self._error = copy_error(error)
        self._lock = threading.Lock()
        self.position = turn.position
        #: That the server may be told as known; 0 while something before it may still fail there.
        self.number = turn.last_number if sequencer.is_settled(turn, error) else 0
        self.received: int | None = None

    def receive(self) -> None:
        """Note that the user has received the error; from any thread, any number of times."""
        with self._lock:
            if self.received is None:
                self.received = self._now()

    def stop(self, future: APIFuture[Any], not_done: str) -> BaseException:
        """Return the error of an operation that this stops: it was not ``sent`` or not ``run``.
        Receiving it receives this.
        """
        receipt = self._receipt()
        if receipt is not None:
            receipt.stopped.append(future.operation)
        future.receipt.share(self.receive if receipt is None else receipt.mark_received)
        if isinstance(self._error, SessionLostError):
            lost = copy_error(self._error)
            lost.add_note(f"{future.operation} was not {not_done}.")
            return lost
        kind, text = type(self._error).__name__, str(self._error)
        first_line = (
            text
            if isinstance(self._error, TinkerError) and text
            else f"{kind}: {text}".rstrip(": ")
        ).splitlines()[0]
        error = PrecedingRequestFailed(
            f"{future.operation} was not {not_done}, because the {self._operation} before it "
            f"failed: {first_line}",
            future.operation,
            self._operation,
        )
        error.__cause__ = self._error
        return error
