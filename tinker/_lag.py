"""Notices that the I/O thread was kept from running, by code that held the interpreter, and says so in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tinker._clock import Clock

logger = logging.getLogger("tinker")

TICK_SECONDS = 0.5
LONG_SECONDS = 2.0
NEWS_SECONDS = 60.0


class LagWatch:
    """Sleeps in short pieces and looks how late it wakes. At most one line a minute, about the longest hold since the last."""

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
            self._longest = max(self._longest, now - before - TICK_SECONDS)
            if self._longest >= LONG_SECONDS and now - self._told >= NEWS_SECONDS:
                self._report(now)

    def _report(self, now: float) -> None:
        logger.warning(
            "your code held the interpreter for %.1f s, in which nothing could be sent or received, heartbeats included; "
            "let long computations run in a process of their own",
            self._longest,
        )
        self._told, self._longest = now, 0.0
