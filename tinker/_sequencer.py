"""The order of requests on one training client, and their numbers. Used on the loop only.

A place is taken in the order of the user's calls. Its turn comes when every earlier place is done submitting; results are
not waited for. Numbers are given at the turn, to requests that are ready to be sent, so a request that fails before it is
sent leaves no hole. A submission that finally fails breaks the order for good: every later place fails with its error.
"""

from __future__ import annotations

import asyncio

from tinker.errors import copy_error

FIRST_NUMBER = 1  # creation is implicitly 0


class Sequencer:
    """The queue of one training client."""

    def __init__(self) -> None:
        self._tail: asyncio.Future[None] | None = None
        self._next = FIRST_NUMBER
        self._failure: BaseException | None = None

    def place(self) -> Place:
        """The next place in the queue."""
        place = Place(self, self._tail)
        self._tail = place.done
        return place

    @property
    def next_number(self) -> int:
        """The number the next request will carry. Only whose turn it is may rely on it."""
        return self._next

    def use(self, count: int) -> None:
        """The next ``count`` numbers are about to be sent; a negative count takes back numbers that nobody has seen."""
        self._next += count

    def broken_by(self, error: BaseException) -> None:
        """Fail every later place with ``error``; the first error stays."""
        if self._failure is None:
            self._failure = error

    def check(self) -> None:
        """Raise what broke the order, if anything did."""
        if self._failure is not None:
            error = copy_error(self._failure)
            if not getattr(error, "__notes__", None):
                error.add_note("An earlier request of this training client failed, so the later ones were not sent.")
            raise error


class Place:
    """``async with place`` waits for the turn and holds it."""

    def __init__(self, sequencer: Sequencer, before: asyncio.Future[None] | None) -> None:
        self._sequencer = sequencer
        self._before = before
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Sequencer:
        try:
            if self._before is not None:
                await asyncio.shield(self._before)
            self._sequencer.check()
        except BaseException:
            self.leave()
            raise
        return self._sequencer

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
