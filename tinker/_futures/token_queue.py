"""A closable queue for threads and event loops, and the tokens of a stream, which are handed over
by it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import msgspec
from tinker_wire import models

from tinker._clock import get_waiting_loop
from tinker.types.results import SampleResponse

#: The time between tokens, where the user does not say.
SILENCE_SECONDS = 120.0
T = TypeVar("T")


class ClosableQueue(Generic[T]):
    """A queue that the loop fills and others empty, blocking or awaiting. It is closed when its
    future is done.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._wakers: list[Callable[[], None]] = []
        self._closed = False

    def put(self, item: T) -> None:
        """Add an item; never blocks."""
        with self._changed:
            self._items.append(item)
            self._wake_all()

    def close(self, _: object = None) -> None:
        """Close the queue. Its items can still be taken."""
        with self._changed:
            self._closed = True
            self._wake_all()

    def take(self, timeout: float | None = None) -> T | None:
        """Block until there is an item, and return it; None when the queue is closed and empty.
        Raises TimeoutError.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_ready, timeout):
                raise TimeoutError
            return self._items.popleft() if self._items else None

    async def take_async(self) -> T | None:
        """Wait for an item and return it; None when the queue is closed and empty."""
        while True:
            with self._changed:
                if self._is_ready():
                    return self._items.popleft() if self._items else None
                event = asyncio.Event()
                self._wakers.append(partial(_set_event, get_waiting_loop(), event))
            await event.wait()

    def _is_ready(self) -> bool:
        return bool(self._items) or self._closed

    def _wake_all(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()


class TokenQueue(msgspec.Struct, kw_only=True):
    """The events of a stream, and the number of tokens in them. ``silence_seconds`` is the longest
    time between two events.
    """

    silence_seconds: float = SILENCE_SECONDS
    received_tokens: int = 0
    events: ClosableQueue[models.SampleStreamEvent] = msgspec.field(
        default_factory=ClosableQueue[models.SampleStreamEvent]
    )

    def put(self, event: models.SampleStreamEvent) -> None:
        """Add an event."""
        self.received_tokens += len(event.tokens)
        self.events.put(event)

    def put_response(self, response: SampleResponse) -> None:
        """Add a whole response, one event for each of its sequences."""
        for index, sequence in enumerate(response.sequences):
            self.put(
                models.SampleStreamEvent(
                    type="tokens",
                    index=index,
                    tokens=list(sequence.tokens),
                    logprobs=list(sequence.logprobs or ()),
                    stop_reason=sequence.stop_reason,
                )
            )


def _set_event(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:
        pass  # that loop is closed; nobody waits any more
