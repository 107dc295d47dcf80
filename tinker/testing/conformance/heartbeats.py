"""The sessions of a run that are kept alive as clients keep theirs, also while a poll is held.

How heartbeats are answered is the matter of the checks of sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

#: How often clients send one.
HEARTBEAT_SECONDS = 10.0
#: More than one heartbeat may take.
_LONGEST_END_SECONDS = 20.0


class Heartbeats:
    """A thread from the first session to :meth:`close`.

    ``event`` makes what the thread waits for; ``send`` sends one heartbeat of a session, and raises nothing.
    """

    def __init__(self, event: Callable[[], threading.Event], send: Callable[[str], None]) -> None:
        self._event, self._send = event, send
        self._sessions: tuple[str, ...] = ()
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def keep(self, session_id: str) -> None:
        """Send heartbeats of that session from now on."""
        self._sessions += (session_id,)
        if self._ended is None:
            self._ended = self._event()
            self._thread = threading.Thread(
                target=self._run, args=(self._ended,), name="tinker-conformance-heartbeats", daemon=True
            )
            self._thread.start()

    def release(self, session_id: str) -> None:
        """Send no more of that session."""
        self._sessions = tuple(one for one in self._sessions if one != session_id)

    def close(self) -> None:
        """Send no more; returns when the one under way is answered or given up."""
        if self._ended is not None and self._thread is not None:
            self._ended.set()
            self._thread.join(_LONGEST_END_SECONDS)

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            for session in self._sessions:
                if not ended.is_set():
                    self._send(session)
