"""Waiting, on any event loop, for a condition that another thread makes true."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable


class Notifier:
    """Wakes whoever waits, each on the loop it waits on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    @property
    def waiters(self) -> int:
        """Return how many wait."""
        return len(self._wakers)

    def notify_all(self) -> None:
        """Wake all waiters. Make their condition true first."""
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()

    async def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> None:
        """Wait until ``ready()``, which is asked again after each call, or for ``seconds`` (None: no limit, 0: not at all)."""
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
