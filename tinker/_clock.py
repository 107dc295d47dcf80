"""Time, sleep and randomness as one value, so that every wait can be tested without waiting."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import attrs


@attrs.frozen
class Clock:
    """``monotonic`` in seconds, ``wall`` in seconds since 1970, ``random`` uniform in [0, 1).

    ``timer`` sleeps as well, for a limit that something else is expected to keep.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    timer: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def ends_within(self, seconds: float, work: Coroutine[Any, Any, object]) -> bool:
        """Whether the work ended in this time; it is cancelled if not. What it raises is raised."""
        working, over = asyncio.ensure_future(work), asyncio.ensure_future(self.timer(seconds))
        try:
            await asyncio.wait({working, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            working.cancel()
        if not working.done() or working.cancelled():
            return False
        working.result()
        return True
