"""The progress of the request of a future, and the observers of its place in the queue of the
server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar

import msgspec

from tinker._loop import must_pass
from tinker.observing import QueueCallback, Timings

logger = logging.getLogger("tinker")


class EventLabels(msgspec.Struct, eq=False):
    """The ids attached to the events of one client, shared by its futures and filled in when they
    are known.
    """

    training_run_id: str | None = None
    sampling_session_id: str | None = None
    base_model: str | None = None
    user_metadata: Mapping[str, object] | None = None


class Reachability(msgspec.Struct, eq=False):
    """Whether the server responds, shared by all operations of a client; ``failure`` is why it did
    not, the last time.
    """

    failure: str | None = None
    has_answered: bool = False


class OperationProgress(msgspec.Struct, eq=False):
    """The progress of one request. Times are of the client's monotonic clock."""

    request_id: str | None = None
    queue_state: str | None = None
    queue_state_reason: str | None = None
    queued: float | None = None
    observers: list[QueueCallback] = msgspec.field(default_factory=list[QueueCallback])
    labels: EventLabels | None = None
    trace_headers: Mapping[str, str] | None = None
    reachability: Reachability | None = None
    # what is being sent is sent to the end, also when the future is cancelled
    is_sending: bool = False
    _submitted: float | None = None
    _running: float | None = None
    _fetched: float | None = None

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
        """Note that the server has started to work on the request."""
        if self._running is None:
            self._running = now

    def note_fetched(self, now: float) -> None:
        """Note that the result has arrived."""
        self._fetched = now

    def note_queue(self, state: str, reason: str | None) -> bool:
        """Note the state of the queue and call the observers; return whether it is new."""
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


#: The operation of the current task of the loop; set only with observers or tracing.
CURRENT_OPERATION: ContextVar[OperationProgress | None] = ContextVar(
    "present operation", default=None
)
