"""Time, sleep and randomness as one value, so that every wait can be tested without waiting."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import attrs


@attrs.frozen
class Clock:
    """``monotonic`` in seconds, ``wall`` in seconds since 1970, ``random`` uniform in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
