"""Futures of requests, which are pending, how long results are kept; and the log of completed
samples of each client.

Free of any event loop: results come from the engine's thread, and each waiter is woken on the loop
it waits on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs
import msgspec

from tinker.local.errors import APIProblem, make_not_found
from tinker.local.settings import Settings
from tinker.local.storage.trace import Span
from tinker.types.results import ForwardBackwardOutput, SampleResponse

if TYPE_CHECKING:
    from tinker.local.storage.sessions import ServerEvents, SessionRecord


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
        """Wait until ``ready()``, checked after each notification, for at most ``seconds`` (None:
        no limit, 0: do not wait).
        """
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


# completions that no client asks for; their results are not kept that long either
MAX_COMPLETIONS = 20_000


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
    """A request that was accepted and failed; ``category`` names the cause (``user`` or
    ``server``).

    ``failed_operation`` is that of an earlier request because of whose failure this one was not
    run.
    """

    error: str
    category: str
    failed_operation: str | None = None


RequestResult: TypeAlias = ForwardBackwardOutput | SampleResponse | msgspec.Struct
RequestOutcome: TypeAlias = RequestResult | RequestFailure


def do_nothing() -> None:
    """Do nothing."""


@attrs.define(eq=False)
class ServerFuture:
    """One promised result.

    ``key`` is what makes a request the same request, ``request_id`` what clients call it.
    ``session`` is that of its client, where it has one, and ``engine_model`` the base model that
    works on it. ``is_sample`` says whether it may be cancelled. ``progress`` returns what a pending
    request waits for, None if that is unknown. ``on_done`` is called once, after the outcome is
    set.
    """

    key: str
    fingerprint: bytes = b""
    request_id: str = ""
    span: Span | None = attrs.field(default=None, kw_only=True)
    session: SessionRecord | None = attrs.field(default=None, kw_only=True)
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
        """Set the outcome and wake the waiters; return False, changing nothing, if there is one
        already.
        """
        with self._lock:
            if self._outcome is not None:
                return False
            self._outcome = outcome
        self._notifier.notify_all()
        self.on_done(self)
        return True

    async def wait(self, seconds: float | None = None) -> RequestOutcome | None:
        """Return the outcome once it exists, or None after ``seconds`` (None: no limit). Many may
        wait, on any loops.
        """
        await self._notifier.wait(lambda: self._outcome is not None, seconds)
        return self._outcome


def request_key(owner: str, number: object) -> str:
    """Return the key of a request of a run or sampler."""
    return f"{owner}:request:{number}"


def split_request_key(key: str) -> tuple[str, int | None]:
    """Return the owner and the number in a key; the whole key and None where it has no number."""
    owner, _, number = key.rpartition(":request:")
    return (owner, int(number)) if owner and number.isdigit() else (key, None)


# identifiers of results that are gone, about 130 bytes each; beyond these a request is simply
# unknown
MAX_REMEMBERED = 100_000


class FutureStore:
    """All futures of a server by key. ``lock`` is the server's; ``clock`` counts seconds."""

    def __init__(
        self,
        settings: Settings,
        lock: threading.RLock,
        clock: Callable[[], float],
        events: ServerEvents,
    ) -> None:
        self._settings, self._lock, self._clock, self._events = settings, lock, clock, events
        self._pending: dict[str, ServerFuture] = {}
        self._unread: OrderedDict[str, ServerFuture] = OrderedDict()
        self._read: OrderedDict[str, ServerFuture] = OrderedDict()
        self._gone: dict[int, int] = {}  # digests of keys, and of fingerprints
        self._gone_order: deque[int] = deque()
        # by request id, where that is not the key
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._numbers = itertools.count(1)
        self._nbytes = 0
        self._running: ServerFuture | None = None

    def find_request_id(self, key: str, fingerprint: bytes) -> str | None:
        """Return the id of the same request if it was submitted before. Raises APIProblem 409 for
        another one under ``key``.
        """
        with self._lock:
            future, wanted = self._find(key), shorten(fingerprint)
            known = (
                self._gone.get(shorten(key.encode()))
                if future is None
                else shorten(future.fingerprint)
            )
            ids = (request_id for request_id, its_key in self._keys.items() if its_key == key)
            found = next(ids, key) if future is None else future.request_id
        if known not in (None, wanted):
            raise self._settings.profile.reused_number(key)
        return None if known is None else found

    def open(self, future: ServerFuture) -> ServerFuture:
        """Add a pending future. Raises APIProblem 429 when too many are pending."""
        with self._lock:
            if len(self._pending) >= self._settings.max_queued_requests:
                limit = f"max_queued_requests={self._settings.max_queued_requests}"
                raise APIProblem(
                    429, f"too many requests are waiting ({limit})", {"retry-after": "1"}
                )
            if self._settings.profile.numbered_requests:
                future.request_id = str(next(self._numbers))
                self._keys[future.request_id] = future.key
            self._pending[future.key] = future
            if future.span is not None:
                future.span.request_id, future.span.submitted = future.request_id, self._clock()
            return future

    def forget(self, future: ServerFuture) -> None:
        """Undo :meth:`open`."""
        with self._lock:
            self._pending.pop(future.key, None)
            self._keys.pop(future.request_id, None)

    def find(self, request_id: str) -> ServerFuture:
        """Return the future. Raises APIProblem 410 when its result is no longer kept, 404 when it
        is unknown.
        """
        with self._lock:
            self._evict()
            key = self._keys.get(request_id, request_id)
            future = self._find(key)
            if future is None and shorten(key.encode()) in self._gone:
                detail = f"the result of request {request_id!r} is no longer kept; submit it again"
                raise APIProblem(410, detail, code="result_expired")
        if future is None:
            raise make_not_found(
                "request_not_found",
                request_id,
                self._events.find_last_save(split_request_key(request_id)[0]),
            )
        return future

    def choose(self, future: ServerFuture) -> None:
        """Record the request of a model that runs next; it is finished even if the server is
        closing.
        """
        self._running = future

    def start(self, future: ServerFuture) -> None:
        """Record the start of a request."""
        if future.span is not None:
            future.span.started = self._clock()

    def resolve(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Finish a future; a second outcome is ignored."""
        with self._lock:
            if future.outcome is None and future.key in self._pending:
                self._events.handle_result(future, outcome)
            self._resolve(future, outcome)

    def restore(self, key: str, fingerprint: bytes, outcome: RequestOutcome) -> None:
        """Add a result of an earlier process of this server."""
        with self._lock:
            future = self._pending[key] = ServerFuture(key, fingerprint)
            self._resolve(future, outcome)

    def _resolve(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        if future.outcome is None and self._pending.pop(future.key, None) is not None:
            future.finished_at, future.nbytes = self._clock(), result_nbytes(outcome)
            self._unread[future.key] = future
            self._nbytes += future.nbytes
            if future.span is not None:
                future.span.finish(future.finished_at, failed=isinstance(outcome, RequestFailure))
        future.resolve(outcome)
        self._evict()

    def mark_read(self, future: ServerFuture) -> None:
        """Mark a result as sent, so that it is dropped before unsent ones."""
        with self._lock:
            if self._unread.pop(future.key, None) is not None:
                self._read[future.key] = future

    def release(self, request_id: str) -> None:
        """Drop a result that is not needed any more. A pending or unknown request
        stays as it is.
        """
        with self._lock:
            key = self._keys.get(request_id, request_id)
            future = self._unread.pop(key, None) or self._read.pop(key, None)
            if future is not None:
                self._drop(future)

    def count_pending(self, engine_model: str | None = None) -> dict[str, int]:
        """Return how many requests wait or run, of one base model or all: ``sampling``, and
        ``training`` for all others.
        """
        with self._lock:
            found = [
                one for one in self._pending.values() if engine_model in (None, one.engine_model)
            ]
        samples = sum(future.is_sample or future.key.startswith(STREAM_KEY) for future in found)
        return {"sampling": samples, "training": len(found) - samples}

    def fail_all(self, failure: RequestFailure) -> None:
        """Fail all pending requests but the running one, which gets its own result, as the server
        ends.

        A server that continues later does not take it for a result.
        """
        with self._lock:
            for future in [
                future for future in self._pending.values() if future is not self._running
            ]:
                self._resolve(future, failure)

    def _find(self, key: str) -> ServerFuture | None:
        return self._pending.get(key) or self._unread.get(key) or self._read.get(key)

    def _evict(self) -> None:
        oldest = self._clock() - self._settings.result_seconds
        for kept in (self._read, self._unread):
            while kept and (
                self._is_over_limits() or next(iter(kept.values())).finished_at < oldest
            ):
                self._drop(kept.popitem(last=False)[1])

    def _drop(self, future: ServerFuture) -> None:
        self._nbytes -= future.nbytes
        digest = shorten(future.key.encode())
        self._gone[digest] = shorten(future.fingerprint)
        self._gone_order.append(digest)
        self._events.handle_dropped_result(future.request_id)
        while len(self._gone_order) > MAX_REMEMBERED:
            self._gone.pop(self._gone_order.popleft(), None)
            if self._keys:
                self._keys.popitem(last=False)

    def _is_over_limits(self) -> bool:
        count = len(self._read) + len(self._unread)
        too_large = self._nbytes > self._settings.max_result_bytes and count > 1
        return count > self._settings.max_results or too_large


def shorten(content: bytes) -> int:
    """Return a digest of eight bytes, which is all that is kept of what is remembered by the
    hundred thousand.
    """
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def result_nbytes(outcome: RequestOutcome) -> int:
    """Estimate how much memory a result holds; small records count as nothing."""
    if isinstance(outcome, ForwardBackwardOutput):
        return sum(
            tensor.values.nbytes for fields in outcome.loss_fn_outputs for tensor in fields.values()
        )
    if isinstance(outcome, SampleResponse):
        arrays = [
            outcome.prompt_logprobs_np,
            *(a for s in outcome.sequences for a in (s.tokens_np, s.logprobs_np)),
        ]
        tables = [outcome.topk_prompt_logprobs_np, *(s.topk_logprobs_np for s in outcome.sequences)]
        dense = sum(array.nbytes for array in arrays if array is not None)
        return dense + sum(t.token_ids.nbytes + t.logprobs.nbytes for t in tables if t is not None)
    return 0
