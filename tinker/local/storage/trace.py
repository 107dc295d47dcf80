"""The timeline of a session's requests, as a file of Chrome's trace events, which Perfetto reads
too; and its exports.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import attrs
import msgspec

if TYPE_CHECKING:
    from tinker.local.storage.sessions import SessionRecord

TRACE_MEDIA_TYPE = "application/json"
QUEUE, WORK = 1, 2  # the two "processes" of the picture
log: logging.Logger = logging.getLogger("tinker.local")
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

    def finish(self, at: float, *, failed: bool) -> None:
        """Note the outcome."""
        self.finished, self.failed = at, failed


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
        self._link_seconds, self._lock, self._clock, self._submit_task = (
            link_seconds,
            lock,
            clock,
            submit_task,
        )
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
