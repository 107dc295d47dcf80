"""Futures of requests, and the log of completed samples of each client.

Free of any event loop: results come from the engine's thread, and each waiter is woken on the loop it waits on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import attrs
import msgspec

from tinker.local.storage.trace import Span
from tinker.types.results import ForwardBackwardOutput, SampleResponse


class Notifier:
    """A condition variable for waiters on any event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    def notify_all(self) -> None:
        """Wake all waiters. Make their condition true first."""
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    async def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until ``ready()``, checked after each notification, for at most ``seconds`` (None: no limit, 0: do not wait)."""
        if seconds == 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not ready():
                    await self._wait_for_notification(ready)

    async def _wait_for_notification(self, ready: Callable[[], bool]) -> None:
        event = asyncio.Event()
        wake = functools.partial(_wake, asyncio.get_running_loop(), event)
        with self._lock:
            self._wakers.append(wake)
        try:
            if not ready():  # it may have become true before the waker was there
                await event.wait()
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._wakers.remove(wake)


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the waiter's loop is closed, and the waiter with it
        loop.call_soon_threadsafe(event.set)


MAX_COMPLETIONS = 20_000  # completions that no client asks for; their results are not kept that long either


@attrs.frozen
class Completion:
    """The request that completed; ``number`` is 1 for the first one."""

    number: int
    request_id: str
    failed: bool


class CompletionLog:
    """The completions of one client. Guarded by the lock of the state."""

    def __init__(self, first: int = 0) -> None:
        self._completions: deque[Completion] = deque(maxlen=MAX_COMPLETIONS)
        self._count = first
        self._notifier = Notifier()

    @property
    def cursor(self) -> int:
        """Return the number of the last one."""
        return self._count

    def add(self, request_id: str, *, failed: bool) -> None:
        """Add a completed request."""
        self._count += 1
        self._completions.append(Completion(self._count, request_id, failed))
        self._notifier.notify_all()

    def after(self, cursor: int) -> list[Completion]:
        """Return those behind a cursor. The ones up to it are forgotten."""
        while self._completions and self._completions[0].number <= cursor:
            self._completions.popleft()
        return list(self._completions)

    async def wait(self, cursor: int, seconds: float) -> None:
        """Wait until there is one behind the cursor, at most for ``seconds``."""
        await self._notifier.wait(lambda: self._count > cursor, seconds)


STREAM_KEY = "stream:"  # prefix of the keys of streamed samples


@attrs.frozen
class RequestFailure:
    """A request that was accepted and failed; ``category`` names the cause (``user`` or ``server``).

    ``failed_operation`` is that of an earlier request because of whose failure this one was not run.
    """

    error: str
    category: str
    failed_operation: str | None = None


RequestResult: TypeAlias = ForwardBackwardOutput | SampleResponse | msgspec.Struct
RequestOutcome: TypeAlias = RequestResult | RequestFailure


class Client(Protocol):
    """The part of a session that a poll of its client changes; ``last_seen`` is the clock's."""

    last_seen: float


def do_nothing() -> None:
    """Do nothing."""


@attrs.define(eq=False)
class ServerFuture:
    """One promised result.

    ``key`` is what makes a request the same request, ``request_id`` what clients call it. ``session`` is that of its client,
    where it has one, and ``engine_model`` the base model that works on it. ``is_sample`` says whether it may be cancelled.
    ``progress`` returns what a pending request waits for, None if that is unknown. ``on_done`` is called once, after
    the outcome is set.
    """

    key: str
    fingerprint: bytes = b""
    request_id: str = ""
    span: Span | None = attrs.field(default=None, kw_only=True)
    session: Client | None = attrs.field(default=None, kw_only=True)
    engine_model: str | None = attrs.field(default=None, kw_only=True)
    is_sample: bool = attrs.field(default=False, kw_only=True)
    progress: Callable[[], str | None] = attrs.field(default=do_nothing, kw_only=True)
    on_done: Callable[[ServerFuture], None] = attrs.field(default=lambda _: None, kw_only=True)
    encoded: tuple[str, bytes] | None = attrs.field(default=None, init=False)
    finished_at: float = attrs.field(default=0.0, init=False)
    nbytes: int = attrs.field(default=0, init=False)
    _outcome: RequestOutcome | None = attrs.field(default=None, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _notifier: Notifier = attrs.field(factory=Notifier, init=False)

    def __attrs_post_init__(self) -> None:
        self.request_id = self.request_id or self.key

    @property
    def outcome(self) -> RequestOutcome | None:
        """None while pending."""
        return self._outcome

    def resolve(self, outcome: RequestOutcome) -> bool:
        """Set the outcome and wake the waiters; return False, changing nothing, if there is one already."""
        with self._lock:
            if self._outcome is not None:
                return False
            self._outcome = outcome
        self._notifier.notify_all()
        self.on_done(self)
        return True

    async def wait(self, seconds: float | None = None) -> RequestOutcome | None:
        """Return the outcome once it exists, or None after ``seconds`` (None: no limit). Many may wait, on any loops."""
        await self._notifier.wait(lambda: self._outcome is not None, seconds)
        return self._outcome


def request_key(owner: str, number: object) -> str:
    """Return the key of a request of a run or sampler."""
    return f"{owner}:request:{number}"


def split_request_key(key: str) -> tuple[str, int | None]:
    """Return the owner and the number in a key; the whole key and None where it has no number."""
    owner, _, number = key.rpartition(":request:")
    return (owner, int(number)) if owner and number.isdigit() else (key, None)
