"""How far the request of a future has come, as the loop notes it, and who observes what the server says of the queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar

from tinker._loop import must_pass
from tinker.observing import QueueCallback, Timings

logger = logging.getLogger("tinker")


class Subject:
    """What the operations of one client are about, shared by their futures and filled in as it comes to be known."""

    __slots__ = ("base_model", "sampling_session_id", "training_run_id", "user_metadata")

    def __init__(self) -> None:
        self.training_run_id: str | None = None
        self.sampling_session_id: str | None = None
        self.base_model: str | None = None
        self.user_metadata: Mapping[str, object] | None = None


class OperationProgress:
    """What is known of one request; times are those of the client's monotonic clock."""

    __slots__ = (
        "_fetched",
        "_running",
        "_submitted",
        "observers",
        "queue_state",
        "queue_state_reason",
        "queued",
        "request_id",
        "subject",
        "trace_headers",
    )

    def __init__(self) -> None:
        self.request_id: str | None = None
        self.queue_state: str | None = None
        self.queue_state_reason: str | None = None
        self.queued: float | None = None
        self._submitted: float | None = None
        self._running: float | None = None
        self._fetched: float | None = None
        self.observers: list[QueueCallback] = []
        self.subject: Subject | None = None
        self.trace_headers: Mapping[str, str] | None = None

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


#: The operation that a task of the loop works for; set only while somebody observes or traces.
PRESENT: ContextVar[OperationProgress | None] = ContextVar("present operation", default=None)
