"""The traces that clients asked for, which are made in the engine's thread and kept for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs

from tinker.local.storage.sessions import SessionRecord
from tinker.local.storage.trace import encode_trace


@attrs.define
class TraceExport:
    """A trace that is being made (``content`` None) or was made. It is forgotten after ``until``."""

    until: float
    content: bytes | None = None


class TraceExports:
    """The exported traces by session. ``submit_task`` runs a function in another thread; ``lock`` is the server's."""

    def __init__(
        self,
        link_seconds: float,
        lock: threading.RLock,
        clock: Callable[[], float],
        submit_task: Callable[[Callable[[], None]], None],
    ) -> None:
        self._link_seconds, self._lock, self._clock, self._submit_task = link_seconds, lock, clock, submit_task
        self._exports: dict[str, TraceExport] = {}

    def is_ready(self, session: SessionRecord) -> bool:
        """Return whether the trace exists. Begins to make it unless that was asked for lately."""
        with self._lock:
            now = self._clock()
            self._exports = {name: export for name, export in self._exports.items() if export.until > now}
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
