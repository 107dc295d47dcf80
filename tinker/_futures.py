"""What a future keeps besides its outcome: the progress of its request, the receipt of its error,
the tokens of a stream.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
from tinker_wire import models

from tinker._basics.events import QueueCallback, Timings
from tinker._loop import get_waiting_loop, loop_thread, must_pass
from tinker.types.model_input import ModelInput
from tinker.types.results import SampleResponse

logger = logging.getLogger("tinker")
T = TypeVar("T")


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


class Meter(Protocol):
    """What counts the tokens that one operation uses, for the observers of its client."""

    async def identify(self, find: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Learn the base model, by which tokens are counted, if it is not known."""
        ...

    async def follow(self, inputs: Iterable[ModelInput], result: Awaitable[T]) -> T:
        """Wait for the result of an accepted request, and note what it used."""
        ...

    def note(
        self, inputs: Iterable[ModelInput], *, sampled: int = 0, is_confirmed: bool = True
    ) -> None:
        """Note a use of inputs."""
        ...


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
    meter: Meter | None = None  # with observers of the user
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
    "current operation", default=None
)


_PACKAGE = str(Path(__file__).parent)


class Receipt(msgspec.Struct, eq=False, weakref=True):
    """The actions to take when the user receives the error of one future. May be used from any
    thread.
    """

    _actions: tuple[Callable[[], object], ...] = ()
    _unseen: _Unseen | None = None
    _reported_by_other: bool = False
    #: The operations that were not carried out because of the error.
    stopped: list[str] = []
    is_received: bool = False

    def expect(self, operation: str, error: BaseException) -> None:
        """Log ``error`` at the end, unless it is received or passed on before, or another future
        logs it.
        """
        if self._unseen is None and not self._reported_by_other:
            self._unseen = _Unseen(operation, error, self.stopped)

    def add_action(self, action: Callable[[], object]) -> None:
        """Call ``action()`` when the user receives the error. Add it before the future is done."""
        self._actions += (action,)

    def share(self, receive: Callable[[], object]) -> None:
        """Note that this future fails with the error of another, which logs it. Receiving this
        calls ``receive()``.
        """
        self._reported_by_other = True
        self.add_action(receive)

    def mark_received(self) -> None:
        """Note that the user has the error, if only that of an operation that
        failed because of it.
        """
        self.is_received = True
        self.mark_delegated()
        for action in self._actions:
            action()

    def mark_delegated(self) -> None:
        """Note that another future fails with the error, so that this one has nothing to log."""
        if self._unseen is not None:
            self._unseen.dismiss()


class _Unseen:
    """A failure that nobody has received yet; logged when it is garbage-collected, or at exit."""

    def __init__(self, operation: str, error: BaseException, stopped: list[str]) -> None:
        self._operation, self._stopped = operation or "an operation", stopped
        self._text: str | None = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
        _all_unseen.add(self)

    def dismiss(self) -> None:
        self._text = None

    def report(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            if count := len(self._stopped):
                text += f"; {count} later request{'s' if count > 1 else ''} of the run did not run"
            logger.error("%s failed, and its error was never retrieved: %s", self._operation, text)

    def __del__(self) -> None:
        self.report()


_all_unseen: weakref.WeakSet[_Unseen] = weakref.WeakSet()


def report_before_others() -> None:
    """Report before the exit functions that were registered until now, which may end what requests
    still need.
    """
    atexit.unregister(_report_at_exit)
    atexit.register(_report_at_exit)


def _report_at_exit() -> None:
    """Log unfinished requests and unseen errors."""
    thread = loop_thread()
    thread.log_unfinished("when the program ended")
    for unseen in tuple(_all_unseen):
        unseen.report()
    thread.end_reports()
    logger.addFilter(_is_of_user)


def _is_of_user(record: logging.LogRecord) -> bool:
    """Return whether other code made the record: what fails in this package from here on fails
    because the program ends.
    """
    return not record.pathname.startswith(_PACKAGE)


report_before_others()


#: The time between tokens, where the user does not say.
SILENCE_SECONDS = 120.0


class Condition(threading.Condition):
    """A condition that an interrupted thread never leaves locked.

    A ``with`` block calls the methods of its lock, which are not Python code. In those of the base
    class, Ctrl-C may come just after the lock is taken or just before it is released, and the I/O
    thread would wait for it forever.
    """

    if not TYPE_CHECKING:
        __enter__ = property(attrgetter("_lock.__enter__"))
        __exit__ = property(attrgetter("_lock.__exit__"))


class ClosableQueue(Generic[T]):
    """A queue that the loop fills and others empty, blocking or awaiting. It is closed when its
    future is done.
    """

    def __init__(self) -> None:
        self._changed = Condition()
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
