"""Futures of requests, their timeline, and the journal of what a killed server must recover."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import re
import secrets
import sqlite3
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

import attrs
import msgspec
from tinker_wire import models

from tinker._version import __version__
from tinker._wire import json, proto
from tinker.local.call import APIProblem, log, make_not_found
from tinker.local.settings import Settings
from tinker.types.results import ForwardBackwardOutput, SampleResponse

if TYPE_CHECKING:
    from tinker.local.state import State
    from tinker.local.storage.sessions import SessionRecord

QUEUE, WORK = 1, 2  # the two "processes" of the picture
_TRACE_PARENT: ContextVar[str | None] = ContextVar("traceparent", default=None)
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@contextlib.contextmanager
def in_trace(operation: str, traceparent: str | None) -> Generator[None]:
    """Note, for the requests that are accepted in the block, which span of the client they are of,
    by W3C Trace Context.

    What does not have the form of one is ignored.
    """
    known = traceparent if traceparent is not None and _FORM.fullmatch(traceparent) else None
    if known is not None:
        log.debug("%s is of trace %s", operation, known)
    token = _TRACE_PARENT.set(known)
    try:
        yield
    finally:
        _TRACE_PARENT.reset(token)


@attrs.define(eq=False, kw_only=True)
class Span:
    """One request: its ``operation``, and the model or sampler whose ``track`` it is on. Times in
    seconds of the server's clock, None until they have come. ``traceparent`` is the span of the
    client that it is of, if there is one.
    """

    operation: str
    track: str
    request_id: str = ""
    submitted: float = 0.0
    started: float | None = None
    finished: float | None = None
    failed: bool = False
    traceparent: str | None = attrs.field(factory=_TRACE_PARENT.get)


def encode_trace(spans: Iterable[Span], since: float, until: float) -> bytes:
    """Encode requests as a trace. Times count from ``since``; unfinished requests
    end at ``until``.
    """
    return msgspec.json.encode(
        {"displayTimeUnit": "ms", "traceEvents": list(_events(list(spans), since, until))}
    )


def _events(spans: list[Span], since: float, until: float) -> Iterator[dict[str, object]]:
    """Yield the events. Waiting overlaps, so it is drawn with asynchronous events; running does
    not.
    """
    tracks = {
        track: number for number, track in enumerate(dict.fromkeys(span.track for span in spans), 1)
    }
    for process, title in ((QUEUE, "waiting"), (WORK, "running")):
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": title}}
        for track, number in tracks.items():
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": process,
                "tid": number,
                "args": {"name": track},
            }
    for index, span in enumerate(spans, 1):
        begun = until if span.started is None else span.started
        ended = until if span.finished is None else span.finished
        about: dict[str, object] = {
            "request_id": span.request_id,
            "failed": span.failed,
            "finished": span.finished is not None,
        }
        if span.traceparent is not None:
            about["traceparent"] = span.traceparent
        common = {"name": span.operation, "cat": "request", "tid": tracks[span.track]}
        waited = min(begun, ended)
        yield {
            **common,
            "ph": "b",
            "pid": QUEUE,
            "id": index,
            "ts": _micros(span.submitted - since),
            "args": about,
        }
        yield {**common, "ph": "e", "pid": QUEUE, "id": index, "ts": _micros(waited - since)}
        if span.started is not None:
            duration = max(0, _micros(ended - begun))
            yield {
                **common,
                "ph": "X",
                "pid": WORK,
                "ts": _micros(begun - since),
                "dur": duration,
                "args": about,
            }


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


@attrs.define
class TraceExport:
    """A trace that is being made (``content`` None) or was made. It is forgotten
    after ``until``.
    """

    until: float
    content: bytes | None = None


class TraceExports:
    """The exported traces by session. ``submit_task`` runs a function in another thread; ``lock``
    is the server's.
    """

    def __init__(
        self,
        link_seconds: float,
        lock: threading.RLock,
        clock: Callable[[], float],
        submit_task: Callable[[Callable[[], None]], None],
    ) -> None:
        self._link_seconds, self._lock = link_seconds, lock
        self._clock, self._submit_task = clock, submit_task
        self._exports: dict[str, TraceExport] = {}

    def is_ready(self, session: SessionRecord) -> bool:
        """Return whether the trace exists. Begins to make it unless that was asked for lately."""
        with self._lock:
            now = self._clock()
            self._exports = {
                name: export for name, export in self._exports.items() if export.until > now
            }
            if session.session_id not in self._exports:
                export = self._exports[session.session_id] = TraceExport(now + self._link_seconds)
                self._submit_task(lambda: self._make(session, export))
                return False
            return self._exports[session.session_id].content is not None

    def content(self, session_id: str) -> bytes | None:
        """Return the trace of a session; None when there is none."""
        export = self._exports.get(session_id)
        return None if export is None else export.content

    def _make(self, session: SessionRecord, export: TraceExport) -> None:
        with self._lock:
            spans = [attrs.evolve(span) for span in session.spans]
        export.content = encode_trace(spans, session.started, self._clock())


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
    """The completions of one client, the last of which has the number ``cursor``. Guarded by the
    lock of the state.
    """

    def __init__(self, first: int = 0) -> None:
        self._completions: deque[Completion] = deque(maxlen=MAX_COMPLETIONS)
        self.cursor: int = first
        self._notifier = Notifier()

    def add(self, request_id: str, *, failed: bool) -> None:
        """Add a completed request."""
        self.cursor += 1
        self._completions.append(Completion(self.cursor, request_id, failed))
        self._notifier.notify_all()

    def after(self, cursor: int) -> list[Completion]:
        """Return those behind a cursor. The ones up to it are forgotten."""
        while self._completions and self._completions[0].number <= cursor:
            self._completions.popleft()
        return list(self._completions)

    async def wait(self, cursor: int, seconds: float) -> None:
        """Wait until there is one behind the cursor, at most for ``seconds``."""
        await self._notifier.wait(lambda: self.cursor > cursor, seconds)


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
    works on it. ``outcome`` is None while it is pending. ``is_sample`` says whether it may be
    cancelled. ``progress`` returns what a pending request waits for, None if that is unknown.
    ``on_done`` is called once, after the outcome is set.
    """

    key: str
    fingerprint: bytes = b""
    request_id: str = attrs.field(default=attrs.Factory(lambda self: self.key, takes_self=True))
    span: Span | None = attrs.field(default=None, kw_only=True)
    session: SessionRecord | None = attrs.field(default=None, kw_only=True)
    engine_model: str | None = attrs.field(default=None, kw_only=True)
    is_sample: bool = attrs.field(default=False, kw_only=True)
    progress: Callable[[], str | None] = attrs.field(default=do_nothing, kw_only=True)
    on_done: Callable[[ServerFuture], None] = attrs.field(default=lambda _: None, kw_only=True)
    encoded: tuple[str, bytes] | None = attrs.field(default=None, init=False)
    finished_at: float = attrs.field(default=0.0, init=False)
    nbytes: int = attrs.field(default=0, init=False)
    outcome: RequestOutcome | None = attrs.field(default=None, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _notifier: Notifier = attrs.field(factory=Notifier, init=False)

    def resolve(self, outcome: RequestOutcome) -> bool:
        """Set the outcome and wake the waiters; return False, changing nothing, if there is one
        already.
        """
        with self._lock:
            if self.outcome is not None:
                return False
            self.outcome = outcome
        self._notifier.notify_all()
        self.on_done(self)
        return True

    async def wait(self, seconds: float | None = None) -> RequestOutcome | None:
        """Return the outcome once it exists, or None after ``seconds`` (None: no limit). Many may
        wait, on any loops.
        """
        await self._notifier.wait(lambda: self.outcome is not None, seconds)
        return self.outcome


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
    """All futures of a server by key. ``lock`` is the server's; ``clock`` counts seconds. ``state``
    hears of results before anybody can see them, and of those that are kept no longer.
    """

    def __init__(
        self,
        settings: Settings,
        lock: threading.RLock,
        clock: Callable[[], float],
        state: State,
    ) -> None:
        self._settings, self._lock, self._clock, self._state = settings, lock, clock, state
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
            saved = self._state.checkpoints.describe_last_save(split_request_key(request_id)[0])
            raise make_not_found("request_not_found", request_id, saved)
        return future

    def choose(self, future: ServerFuture, *, is_next: bool) -> None:
        """Record the request of a model that runs next; it is finished even if the server is
        closing. ``is_next`` says that it runs right after the number before it.
        """
        self._running = future
        if not is_next:
            self._state.handle_gap(future)

    def start(self, future: ServerFuture) -> None:
        """Record the start of a request."""
        if future.span is not None:
            future.span.started = self._clock()

    def resolve(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Finish a future; a second outcome is ignored."""
        with self._lock:
            if future.outcome is None and future.key in self._pending:
                self._state.handle_result(future, outcome)
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
                future.span.finished = future.finished_at
                future.span.failed = isinstance(outcome, RequestFailure)
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
        self._state.handle_dropped_result(future.request_id)
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


FOLDER = ".journal"
FILE = "journal.sqlite"
# of the file, in its user_version; a file of an earlier version of this package has 0, and is the
# same
FORMAT = 1
Row = TypeVar("Row", bound=msgspec.Struct | tuple[object, ...])
Statement: TypeAlias = tuple[str, tuple[object, ...]]
Execute: TypeAlias = Callable[[str, tuple[object, ...]], object]
# kinds of results; every other one is the name of a record
LOSS, SAMPLE, FAILURE = "loss", "sample", "failure"
_SECRET, _STARTS, _WRITER = "secret", "starts", "writer"


class Table(Generic[Row]):
    """A table of one kind of record, whose fields are the columns, or of tuples of these
    ``columns``. ``keys`` form the primary key.

    ``conflict`` is the policy for an existing key: ignore the row, replace it, or add to its last
    column.
    """

    def __init__(
        self,
        name: str,
        row: type[Row],
        *keys: str,
        columns: str = "",
        conflict: Literal["ignore", "replace", "sum"] = "replace",
    ) -> None:
        self.name = name
        self.row = row
        self.columns: tuple[str, ...] = (*columns.split(),) or _find_fields(row)
        listed, last = ", ".join(self.columns), self.columns[-1]
        marks = ", ".join("?" for _ in self.columns)
        primary = f", primary key ({', '.join(keys)})" if keys else ""
        self.schema: str = f"create table if not exists {name} ({listed}{primary})"
        verb = "insert" if conflict == "sum" else f"insert or {conflict}"
        total = (
            f" on conflict do update set {last} = {last} + excluded.{last}"
            if conflict == "sum"
            else ""
        )
        self._insert = f"{verb} into {name} ({listed}) values ({marks}){total}"

    def add(self, row: Row) -> Statement:
        """Return the statement that adds a row."""
        values = msgspec.structs.astuple(row) if isinstance(row, msgspec.Struct) else row
        return self._insert, values

    def delete(self, condition: str, *values: object) -> Statement:
        """Return the statement that deletes the rows that meet a condition."""
        return f"delete from {self.name} where {condition}", values  # noqa: S608 - conditions are constants

    def trim(self, count: int) -> Statement:
        """Return the statement that deletes all rows but the newest."""
        return self.delete(f"rowid <= (select max(rowid) from {self.name}) - ?", count)  # noqa: S608 - no value of a client


def _find_fields(row: Any) -> tuple[str, ...]:
    return cast("type[msgspec.Struct]", row).__struct_fields__


class JournalInUseError(OSError):
    """Another server keeps its runs in this folder."""


class JournalRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that was accepted. ``subject`` is the run, sampler or session that it belongs to.

    ``path`` is the JSON of the parts of the path. ``number`` is that of a request of a run or
    sampler, which has an id, too; ``known_failure`` is the last failure of its run that its client
    knew of, where the client said so.
    """

    subject: str
    operation: str
    path: bytes
    content_type: str
    content: bytes
    created_at: float
    request_id: str | None
    number: int | None
    known_failure: int | None


class JournalResult(msgspec.Struct, frozen=True, array_like=True):
    """A result, encoded."""

    request_id: str
    fingerprint: bytes
    kind: str
    content: bytes

    @property
    def is_failure(self) -> bool:
        """Return whether the request failed."""
        return self.kind == FAILURE

    @property
    def outcome(self) -> RequestOutcome:
        """Return the result, decoded."""
        return _decode(self.kind, self.content)


class JournalRun(msgspec.Struct, frozen=True, array_like=True):
    """A run whose weights are kept as they were after the request ``number``. The numbers missing
    before ``settled`` were given up.
    """

    model_id: str
    number: int
    optimizer: str
    settled: int | None = None


REQUESTS = Table("requests", JournalRequest, "request_id", conflict="ignore")
RESULTS = Table("results", JournalResult, "request_id", conflict="ignore")
RUNS = Table("runs", JournalRun, "model_id")
_META = Table("meta", tuple[str, bytes], "name", columns="name value")


class _Notes(threading.local):
    """Statements of a thread that are not written yet."""

    def __init__(self) -> None:
        self.mine: list[Statement] = []


class Journal:
    """The journal below a data folder, or of a server that keeps nothing (``root`` None). Used from
    any thread.

    ``unreadable`` has the first column, the subject or the id, of each row that could not be read.
    Raises JournalInUseError when another server has the file open, OSError for a file that cannot
    be read, or that a newer version has written.
    """

    def __init__(self, root: Path | None) -> None:
        self._lock = threading.RLock()
        self._notes = _Notes()
        # statements that failed on a full disk, written before anything else
        self._overdue: list[Statement] = []
        self._held: dict[str, dict[str, list[Statement]]] = {}  # by run and request
        self.unreadable: set[str] = set()
        self._file = Path() if root is None else root / FOLDER / FILE
        self._database: sqlite3.Connection | None = None if root is None else _open(self._file)
        try:
            with _explain(self._file):
                self.add_tables(_META, REQUESTS, RESULTS, RUNS)
                # how many servers have used this file before
                self.starts: int = int.from_bytes(self._find_meta(_STARTS) or b"")
                self._set_meta(_STARTS, (self.starts + 1).to_bytes(8))
                self._set_meta(_WRITER, __version__.encode())
        except BaseException:
            self.close()
            raise

    @property
    def is_kept(self) -> bool:
        """Return whether anything is written."""
        return self._database is not None

    def close(self) -> None:
        """Close the file; nothing is written any more."""
        with self._lock:
            if self._database is not None:
                self._database.close()

    def add_tables(self, *tables: Table[Any]) -> None:
        """Create the tables, and in those of an earlier version the columns that are new."""
        if self._database is None:
            return
        with self._lock, _explain(self._file):
            for table in tables:
                self._database.execute(table.schema)
                there = {
                    column[1]
                    for column in self._database.execute(f"pragma table_info({table.name})")
                }
                for column in table.columns:
                    if column not in there:
                        self._database.execute(f"alter table {table.name} add column {column}")

    # Writing

    def note(self, *statements: Statement) -> None:
        """Add statements to this thread's next transaction."""
        if self._database is not None:
            self._notes.mine += statements

    def flush(self) -> None:
        """Write the pending statements of this thread."""
        if self._notes.mine:
            self._attempt()

    def add_request(self, request: JournalRequest) -> None:
        """Write a request, once. Raises sqlite3.Error when that fails; then nothing of it is
        written.
        """
        with self._transaction() as execute:
            execute(*REQUESTS.add(request))

    def add_result(self, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Write a result, unless it is written with the weights of its run. A sample needs its
        request no longer.
        """
        if not self.is_kept or any(future.request_id in held for held in self._held.values()):
            return
        forget = [REQUESTS.delete("request_id = ?", future.request_id)] if future.is_sample else []
        self._attempt(_to_row(future, outcome), *forget)

    def hold_result(self, model_id: str, future: ServerFuture, outcome: RequestOutcome) -> None:
        """Hold back the result of a request that changes a run, and this thread's statements, until
        :meth:`add_run`.

        A server that is killed before repeats the request.
        """
        with self._lock:
            held = self._held.setdefault(model_id, {})
            held[future.request_id] = [*self._notes.mine, _to_row(future, outcome)]
            self._notes.mine.clear()  # they come with the run

    def add_run(self, run: JournalRun, droppable: Iterable[str]) -> None:
        """Write that a run is kept up to a request, with the results that were held back.

        Requests up to it are needed no longer if they are ``droppable``, the names of operations.
        """
        with self._lock:
            with self._transaction() as execute:
                for statement in (RUNS.add(run), *self._find_held(run.model_id)):
                    execute(*statement)
                for name in droppable:
                    condition = "subject = ? and number between 1 and ? and operation = ?"
                    execute(*REQUESTS.delete(condition, run.model_id, run.number, name))
            self._held.pop(run.model_id, None)

    def settle_numbers(self, model_id: str, number: int | None) -> None:
        """Write that the numbers of a run before this one are given up where they are missing."""
        settle = "update runs set settled = max(?, coalesce(settled, 0)) where model_id = ?"
        self._attempt((settle, (number, model_id)))

    def release_results(self, model_id: str) -> None:
        """Release the held results of a run that ends or was never made."""
        with self._lock:
            self._notes.mine += self._find_held(model_id)
            self._held.pop(model_id, None)

    def _find_held(self, model_id: str) -> list[Statement]:
        return [
            statement
            for statements in self._held.get(model_id, {}).values()
            for statement in statements
        ]

    def drop_result(self, request_id: str) -> None:
        """Delete a result that can no longer be requested."""
        self._attempt(RESULTS.delete("request_id = ?", request_id))

    def drop_superseded_result(self, request_id: str, droppable: Iterable[str]) -> None:
        """Delete a result as :meth:`drop_result` does, unless it says that the server has made a
        run or a sampler.

        A restarted server must know that: it is the result of a request that is still here,
        numbered 0 or not ``droppable``.
        """
        names = ", ".join(f"'{name}'" for name in droppable)
        made = (
            "select 1 from requests where request_id = ? and (number = 0 or "  # noqa: S608
            f"operation not in ({names}))"
        )
        self._attempt(
            RESULTS.delete(f"request_id = ? and not exists ({made})", request_id, request_id)
        )

    def drop_session(self, session_id: str) -> None:
        """Forget a session that has ended, and everything in it."""
        columns = ((REQUESTS, "subject"), (RESULTS, "request_id"), (RUNS, "model_id"))
        self._attempt(
            REQUESTS.delete("subject = ?", session_id),
            *(
                table.delete(f"{name} >= ? and {name} < ?", f"{session_id}:", f"{session_id};")
                for table, name in columns
            ),
        )

    # Reading

    def read(self, table: Table[Row], rest: str = "", *values: object) -> list[Row]:
        """Return the rows of a table in the order in which they came; ``rest`` may be a condition
        and another order.

        A row that cannot be read is left out, with a line in the log. Raises OSError for a table
        that cannot be read.
        """
        if self._database is None:
            return []
        query = f"select {', '.join(table.columns)} from {table.name} {rest or 'order by rowid'}"  # noqa: S608
        found: list[Row] = []
        with self._lock, _explain(self._file):
            for row in self._database.execute(query, values):
                try:
                    found.append(msgspec.convert(row, table.row))
                except msgspec.ValidationError as error:
                    log.error(
                        "%s: a row of %s, of %r, cannot be read: %s",
                        self._file,
                        table.name,
                        row[0],
                        error,
                    )
                    self.unreadable.add(str(row[0]))
        return found

    def secret(self) -> bytes:
        """Return the signing secret of this server; a new one if nothing is kept."""
        return self._find_meta(_SECRET) or self._set_meta(_SECRET, secrets.token_bytes(32))

    def _find_meta(self, name: str) -> bytes | None:
        return next((value for _, value in self.read(_META, "where name = ?", name)), None)

    def _set_meta(self, name: str, value: bytes) -> bytes:
        with self._transaction() as execute:
            execute(*_META.add((name, value)))
        return value

    # Transactions

    def _attempt(self, *statements: Statement) -> None:
        """Write, but log a failure instead of raising it. If the disk is full, write again when
        there is room.
        """
        with self._lock:
            try:
                with self._transaction() as execute:
                    for statement in statements:
                        execute(*statement)
            except sqlite3.Error as error:
                log.error(
                    "cannot write the journal: %s; until it can be written, a "
                    "killed server loses results",
                    error,
                )
                if isinstance(error, sqlite3.OperationalError):
                    self._overdue += [*self._notes.mine, *statements]
                    self._notes.mine.clear()

    @contextlib.contextmanager
    def _transaction(self) -> Generator[Execute]:
        database = self._database
        if database is None:
            yield lambda statement, values: None
            return
        with self._lock:
            database.execute("begin")
            try:
                for statement in (*self._overdue, *self._notes.mine):
                    database.execute(*statement)
                yield database.execute
                database.execute("commit")
            except BaseException:
                if database.in_transaction:  # SQLite may have ended it, as on a full disk
                    database.execute("rollback")
                raise
            self._overdue.clear()
            self._notes.mine.clear()


def _open(file: Path) -> sqlite3.Connection:
    with _explain(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = sqlite3.connect(file, timeout=0.0, isolation_level=None, check_same_thread=False)
        # bytes that are no text spoil their row alone
        database.text_factory = partial(str, encoding="utf-8", errors="replace")
        try:
            for setting in (
                "locking_mode = exclusive",
                "journal_mode = wal",
                "synchronous = normal",
            ):
                database.execute(f"pragma {setting}")
            _require_format(database, file)
            database.execute(_META.schema)  # takes the lock
            (fault,) = database.execute("pragma quick_check(1)").fetchone()
            if fault != "ok":
                raise sqlite3.DatabaseError("it is damaged")
            database.execute(f"pragma user_version = {FORMAT}")
        except BaseException:
            database.close()
            raise
    return database


def _require_format(database: sqlite3.Connection, file: Path) -> None:
    """Raise OSError for a file of a format that a newer version of this package has written."""
    (found,) = database.execute("pragma user_version").fetchone()
    if found > FORMAT:
        (writer,) = database.execute(
            "select max(value) from meta where name = ?", (_WRITER,)
        ).fetchone() or (None,)
        newer = (
            f"version {writer.decode(errors='replace')}"
            if isinstance(writer, bytes)
            else "the version that wrote it"
        )
        known = f"this one, {__version__}, reads formats up to {FORMAT}"
        raise OSError(
            f"the journal {file} has format {found}, and {known}; start {newer} "
            f"of tinker, or {_MOVE}"
        )


_MOVE = "move the file away: checkpoints stay, and the runs in it are lost"


@contextlib.contextmanager
def _explain(file: Path) -> Generator[None]:
    """Turn an error of SQLite into an OSError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            other = (
                f"another server keeps its runs in {file.parent.parent}; choose another data "
                f"folder ({error})"
            )
            raise JournalInUseError(other) from error
        advice = f"start the version of tinker that wrote it, or {_MOVE}"
        raise OSError(f"the journal {file} cannot be used ({error}); {advice}") from error


def _to_row(future: ServerFuture, outcome: RequestOutcome) -> Statement:
    return RESULTS.add(JournalResult(future.request_id, future.fingerprint, *_encode(outcome)))


def _encode(outcome: RequestOutcome) -> tuple[str, bytes]:
    if isinstance(outcome, RequestFailure):
        return FAILURE, msgspec.json.encode(attrs.astuple(outcome))
    if isinstance(outcome, ForwardBackwardOutput):
        return LOSS, proto.encode_loss_output(outcome)
    if isinstance(outcome, SampleResponse):
        ids = [one.sequence_id for one in outcome.sequences]
        return SAMPLE, msgspec.msgpack.encode((ids, proto.encode_sample(outcome)))
    return type(outcome).__name__, json.encode(outcome)


def _decode(kind: str, content: bytes) -> RequestOutcome:
    if kind == FAILURE:
        return RequestFailure(*msgspec.json.decode(content, type=list[Any]))
    if kind == LOSS:
        return proto.decode_loss_output(content)
    if kind == SAMPLE:
        ids, body = msgspec.msgpack.decode(content, type=tuple[list[str], bytes])
        return proto.decode_sample(body, ids)
    record: type[msgspec.Struct] = getattr(models, kind)
    return msgspec.json.decode(content, type=record)
