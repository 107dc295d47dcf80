"""The order of requests on one training client, and what a failure stops. Used on the loop only, but for `now` and `receive`.

A place is taken in the order of the user's calls. Its turn comes when every earlier place is done submitting; results are
not waited for.

A failure stops the later requests of the run until the user has received its error: no optimizer step runs without its
gradient, whether it was called ahead or by a loop that looks at nothing, and no run ends because of one refusal. A request
that was called before the error was received fails with PrecedingRequestFailed and is not sent; receiving that error counts as
receiving the failure. A request that is called afterwards is sent.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from functools import partial
from typing import Any

from tinker._training.numbers import Numbers
from tinker.errors import PrecedingRequestFailed, copy_error
from tinker.futures import APIFuture, mark_received, on_received


class Sequencer:
    """The queue of one training client."""

    def __init__(self) -> None:
        self.numbers = Numbers()
        self._tail: asyncio.Future[None] | None = None
        self._positions = itertools.count()
        self._ticks = itertools.count()
        self._blocks: list[Block] = []
        self._ended: tuple[APIFuture[Any], BaseException] | None = None

    def now(self) -> int:
        """The moment of a call or of a receipt, to compare with others; from any thread."""
        return next(self._ticks)

    def place(self, future: APIFuture[Any], called: int) -> Place:
        """The next place in the queue, of an operation that was called at the moment ``called``."""
        place = Place(self, self._tail, future, next(self._positions), called)
        self._tail = place.done
        return place

    def end(self, creation: APIFuture[Any], error: BaseException) -> None:
        """There is no run: fail every later place with ``error``."""
        self._ended = creation, error

    def block(self, place: Place, error: BaseException) -> None:
        """Stop the places behind ``place`` until the user has received ``error`` from its future."""
        block = Block(self, place, error)
        self._blocks.append(block)
        on_received(place.future, block.receive)

    def check(self, place: Place) -> None:
        """Raise what keeps ``place``, whose turn it is, from being sent."""
        if self._ended is not None:
            creation, error = self._ended
            on_received(place.future, partial(mark_received, creation))
            raise _noted(copy_error(error))
        self._blocks = [block for block in self._blocks if block.received is None or place.called < block.received]
        block = next((block for block in self._blocks if block.position < place.position), None)
        if block is not None:
            on_received(place.future, block.receive)
            raise block.error_for(place.future.operation)


def _noted(error: BaseException) -> BaseException:
    error.add_note("The training client could not be created, so its requests were not sent.")
    return error


class Place:
    """``async with place`` waits for the turn and holds it."""

    def __init__(
        self,
        sequencer: Sequencer,
        before: asyncio.Future[None] | None,
        future: APIFuture[Any],
        position: int,
        called: int,
    ) -> None:
        self._sequencer = sequencer
        self._before = before
        self.future = future
        self.position = position
        self.called = called
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Numbers:
        try:
            if self._before is not None:
                await asyncio.shield(self._before)
            self._sequencer.check(self)
        except BaseException:
            self.leave()
            raise
        return self._sequencer.numbers

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def _open(self, _: asyncio.Future[None]) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def leave(self) -> None:
        """Let the next place have its turn, as soon as every earlier one is done."""
        if self.done.done():
            return
        if self._before is None or self._before.done():
            self.done.set_result(None)
            self._before = None
        else:
            self._before.add_done_callback(self._open)


class Block:
    """A failure that stops later requests until it is received."""

    def __init__(self, sequencer: Sequencer, place: Place, error: BaseException) -> None:
        self._sequencer = sequencer
        self._operation = place.future.operation
        self._error = copy_error(error)  # without the traceback, which holds the future and the data
        self._lock = threading.Lock()
        self.position = place.position
        self.received: int | None = None

    def receive(self) -> None:
        """The user has the error now; from any thread, any number of times."""
        with self._lock:
            if self.received is None:
                self.received = self._sequencer.now()

    def error_for(self, operation: str) -> PrecedingRequestFailed:
        """The error of a request that this stops."""
        first_line = (str(self._error) or type(self._error).__name__).splitlines()[0]
        message = f"{operation} was not sent, because the {self._operation} before it failed: {first_line}"
        error = PrecedingRequestFailed(message, operation, self._operation)
        error.__cause__ = self._error
        return error
