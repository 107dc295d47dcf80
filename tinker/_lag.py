"""Notices that the I/O thread could not run, because something in this process held the interpreter, and says so in the log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import FrameType

from tinker._clock import Clock

logger = logging.getLogger("tinker")

TICK_SECONDS = 0.5
LONG_SECONDS = 2.0
NEWS_SECONDS = 60.0
_IMPORT_SYSTEM = "<frozen importlib"


class LagWatch:
    """Sleeps in short pieces and looks how late it wakes. At most one line a minute, about the longest hold since the last.

    An import that takes long is not reported: it happens once, and cannot be moved elsewhere.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told = -NEWS_SECONDS
        self._longest = 0.0

    async def run(self, needed: Callable[[], bool]) -> None:
        """Watch for as long as somebody needs it."""
        while needed():
            before = self._clock.monotonic()
            await self._clock.sleep(TICK_SECONDS)
            now = self._clock.monotonic()
            late = now - before - TICK_SECONDS
            if late < LONG_SECONDS or not is_importing():
                self._longest = max(self._longest, late)
            if self._longest >= LONG_SECONDS and now - self._told >= NEWS_SECONDS:
                self._report(now)

    def _report(self, now: float) -> None:
        logger.warning(
            "nothing could be sent or received for %.1f s, heartbeats included, because code in this process held the "
            "interpreter; run long computations in another process",
            self._longest,
        )
        self._told, self._longest = now, 0.0


def is_importing() -> bool:
    """Whether a thread of this process is importing a module."""
    return any(_is_import(frame) for frame in sys._current_frames().values())  # pyright: ignore[reportPrivateUsage]


def _is_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
            return True
        frame = frame.f_back
    return False
