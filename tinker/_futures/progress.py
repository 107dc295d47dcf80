"""How far the request of a future has come, as the loop notes it, and who observes what the server says of the queue."""

from __future__ import annotations

import logging

from tinker._loop import must_pass
from tinker.observing import QueueCallback, Timings

logger = logging.getLogger("tinker")


class OperationProgress:
    """What is known of one request; times are those of the client's monotonic clock."""

    __slots__ = ("_fetched", "_running", "_submitted", "observers", "queue_state", "queue_state_reason", "queued", "request_id")

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.queue_state: str | None = None
        self.queue_state_reason: str | None = None
        self.queued: float | None = None
        self._submitted: float | None = None
        self._running: float | None = None
        self._fetched: float | None = None
        self.observers: list[QueueCallback] = []

    @property
    def timings(self) -> Timings:
        """Return the times of the stages that the request has reached."""
        return Timings(self.queued, self._submitted, self._running, self._fetched)

    def note_submitted(self, request_id: str, now: float) -> None:
        """Note that the server accepted a request."""
        self.request_id = request_id
        if self._submitted is None:
            self._submitted = now

    def note_running(self, now: float) -> None:
        """Note that the server says that it is at work."""
        if self._running is None:
            self._running = now

    def note_fetched(self, now: float) -> None:
        """Note that a result is here."""
        self._fetched = now

    def note_queue(self, state: str, reason: str | None) -> bool:
        """Note what the server says of the queue and tell those who observe; return whether it is new."""
        if (state, reason) == (self.queue_state, self.queue_state_reason):
            return False
        self.queue_state, self.queue_state_reason = state, reason
        for observer in tuple(self.observers):
            try:
                observer(state, reason)
            except BaseException as error:
                if must_pass(error):
                    raise
                logger.exception("an observer of the queue failed")
        return True
