"""Paths and names that older code imports."""

from __future__ import annotations

import concurrent.futures
from typing import TypeVar

from tinker.futures import APIFuture

T = TypeVar("T")

__all__ = ["APIFuture", "AwaitableConcurrentFuture"]


class AwaitableConcurrentFuture(APIFuture[T]):
    """An APIFuture that follows a ``concurrent.futures.Future``; for code and tests that make
    futures of their own.

    >>> source: concurrent.futures.Future[int] = concurrent.futures.Future()
    >>> source.set_result(7)
    >>> AwaitableConcurrentFuture(source).result()
    7
    """

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        super().__init__()
        self._future = future
        future.add_done_callback(self._follow)

    def future(self) -> concurrent.futures.Future[T]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the future that was given."""
        return self._future

    def cancel(self) -> bool:
        """Cancel the future that was given."""
        return self._future.cancel()

    def _follow(self, done: concurrent.futures.Future[T]) -> None:
        if done.cancelled():
            super().cancel()
        elif (error := done.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(done.result())
