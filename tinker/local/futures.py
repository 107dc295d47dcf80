"""Promised results: who waits for them, how long they are kept, and what an identifier without one means.

Free of any event loop: results come from the engine's thread, and each waiter is woken on the loop it waits on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import attrs
import msgspec

from tinker.local.problem import Problem, exists, not_found
from tinker.local.settings import Settings
from tinker.types.results import ForwardBackwardOutput, SampleResponse

REMEMBERED = 100_000  # identifiers of results that are gone; beyond these a request is simply unknown


@attrs.frozen
class Failure:
    """A request that was accepted and failed; ``category`` says whose fault it is (``user`` or ``server``)."""

    error: str
    category: str


Result: TypeAlias = ForwardBackwardOutput | SampleResponse | msgspec.Struct
Outcome: TypeAlias = Result | Failure


class Future:
    """One promised result. ``progress`` says, while it is pending, what it waits for; None is nothing in particular."""

    def __init__(self, request_id: str, fingerprint: bytes = b"") -> None:
        self.request_id = request_id
        self.fingerprint = fingerprint
        self.progress: Callable[[], str | None] = _nothing
        self.encoded: tuple[str, bytes] | None = None
        self.finished_at = 0.0
        self.nbytes = 0
        self._outcome: Outcome | None = None
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    @property
    def outcome(self) -> Outcome | None:
        """None while pending."""
        return self._outcome

    def resolve(self, outcome: Outcome) -> bool:
        """Set the outcome and wake who waits; False when there was one already, which then stays."""
        with self._lock:
            if self._outcome is not None:
                return False
            self._outcome = outcome
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()
        return True

    async def wait(self, seconds: float | None = None) -> Outcome | None:
        """The outcome once it is there, or None after ``seconds`` (None: no limit). Any number of waiters, on any loops."""
        if self._outcome is not None or seconds == 0:
            return self._outcome
        event = asyncio.Event()
        wake = functools.partial(_wake, asyncio.get_running_loop(), event)
        with self._lock:
            if self._outcome is not None:
                return self._outcome
            self._wakers.append(wake)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._wakers.remove(wake)
        return self._outcome


def _nothing() -> None:
    return None


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the waiter's loop is closed, and the waiter with it
        loop.call_soon_threadsafe(event.set)


class Futures:
    """All futures of a server by request id. ``lock`` is the server's; ``clock`` counts seconds."""

    def __init__(self, settings: Settings, lock: threading.RLock, clock: Callable[[], float]) -> None:
        self._settings, self._lock, self._clock = settings, lock, clock
        self._pending: dict[str, Future] = {}
        self._unread: OrderedDict[str, Future] = OrderedDict()
        self._read: OrderedDict[str, Future] = OrderedDict()
        self._gone: OrderedDict[str, bytes] = OrderedDict()
        self._nbytes = 0

    def knows(self, request_id: str, fingerprint: bytes) -> bool:
        """Whether this very request was submitted before. Problem 409 when another one was, under the same id."""
        with self._lock:
            future = self._kept(request_id)
            known = self._gone.get(request_id) if future is None else future.fingerprint
        if known is not None and known != fingerprint:
            raise exists(f"request {request_id!r} was submitted before with another body; use a new seq_id")
        return known is not None

    def open(self, request_id: str, fingerprint: bytes) -> Future:
        """A new pending future. Problem 429 when too many are pending."""
        with self._lock:
            if len(self._pending) >= self._settings.max_queued_requests:
                limit = f"max_queued_requests={self._settings.max_queued_requests}"
                raise Problem(429, f"too many requests are waiting ({limit})", {"retry-after": "1"})
            future = self._pending[request_id] = Future(request_id, fingerprint)
            return future

    def forget(self, future: Future) -> None:
        """Its request was refused after all."""
        with self._lock:
            self._pending.pop(future.request_id, None)

    def find(self, request_id: str) -> Future:
        """The future. Problem 410 when its result is no longer kept, 404 when it is unknown."""
        with self._lock:
            self._evict()
            future = self._kept(request_id)
            if future is None and request_id in self._gone:
                raise Problem(410, f"the result of request {request_id!r} is no longer kept; submit it again")
        if future is None:
            raise not_found("request", request_id)
        return future

    def resolve(self, future: Future, outcome: Outcome) -> None:
        """Finish a future; a second outcome is ignored."""
        with self._lock:
            if future.outcome is None and self._pending.pop(future.request_id, None) is not None:
                future.finished_at, future.nbytes = self._clock(), result_nbytes(outcome)
                self._unread[future.request_id] = future
                self._nbytes += future.nbytes
            future.resolve(outcome)
            self._evict()

    def mark_read(self, future: Future) -> None:
        """The result went out: from now on it is dropped before those that did not."""
        with self._lock:
            if self._unread.pop(future.request_id, None) is not None:
                self._read[future.request_id] = future

    def fail_all(self, failure: Failure) -> None:
        """Finish everything that is pending."""
        with self._lock:
            pending = list(self._pending.values())
        for future in pending:
            self.resolve(future, failure)

    def _kept(self, request_id: str) -> Future | None:
        return self._pending.get(request_id) or self._unread.get(request_id) or self._read.get(request_id)

    def _evict(self) -> None:
        oldest = self._clock() - self._settings.result_seconds
        for kept in (self._read, self._unread):
            while kept and (self._crowded() or next(iter(kept.values())).finished_at < oldest):
                request_id, future = kept.popitem(last=False)
                self._nbytes -= future.nbytes
                self._gone[request_id] = future.fingerprint
        while len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)

    def _crowded(self) -> bool:
        count = len(self._read) + len(self._unread)
        too_large = self._nbytes > self._settings.max_result_bytes and count > 1
        return count > self._settings.max_results or too_large


def result_nbytes(outcome: Outcome) -> int:
    """About how much memory a result holds; small records count as nothing."""
    if isinstance(outcome, ForwardBackwardOutput):
        return sum(tensor.values.nbytes for fields in outcome.loss_fn_outputs for tensor in fields.values())
    if isinstance(outcome, SampleResponse):
        arrays = [outcome.prompt_logprobs_np, *(a for s in outcome.sequences for a in (s.tokens_np, s.logprobs_np))]
        tables = [outcome.topk_prompt_logprobs_np, *(s.topk_logprobs_np for s in outcome.sequences)]
        dense = sum(array.nbytes for array in arrays if array is not None)
        return dense + sum(t.token_ids.nbytes + t.logprobs.nbytes for t in tables if t is not None)
    return 0
