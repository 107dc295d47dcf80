"""Waits that ``close()`` ends at once. Used on the loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tinker.errors import ClientClosedError

T = TypeVar("T")


def check_open(closed: bool) -> None:
    """Raise ClientClosedError once the client is closed."""
    if closed:
        raise ClientClosedError("the client is closed")


class Closing:
    """The waits of one client. Closing raises ClientClosedError in every current and later wait."""

    def __init__(self) -> None:
        self._closed = False
        self._waits: set[asyncio.Task[Any]] = set()

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns."""
        if self._closed:
            work.close()
        check_open(self._closed)
        task = asyncio.ensure_future(work)
        self._waits.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            check_open(self._closed and not _is_cancelled())
            raise
        finally:
            self._waits.discard(task)

    def close(self) -> None:
        """End every wait."""
        self._closed = True
        for task in tuple(self._waits):
            task.cancel()


def _is_cancelled() -> bool:
    """Return whether somebody asked for the end of the present task itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
