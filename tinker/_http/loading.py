"""Wait while a server in this process loads its model, and report it to observers and the log.

On a busy machine, importing torch can take longer than the response timeout, so loading has a timeout of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

from tinker._clock import Deadline, Timer
from tinker._http.observers import Observers
from tinker.observing import ModelLoading

logger = logging.getLogger("tinker")

LOADING_SECONDS = 1800.0  # that a request waits for: it may include the download of the model
LOADING_NEWS_SECONDS = 15.0  # between two lines of the log


class LoadingModels(Protocol):
    """Reports the models that a server in this process is loading."""

    def watch(self, listener: Callable[[str | None], object], /) -> None:
        """Call the listener, in any thread, with what loads now, and again with each change."""
        ...

    def unwatch(self, listener: Callable[[str | None], object], /) -> None:
        """Stop calling the listener."""
        ...


FOLLOW_LOADING = "tinker.follow_loading"  # the extension of a request that holds its Follow
#: A block that waits for a request while the models of a server may load.
Follow: TypeAlias = Callable[[LoadingModels], AbstractContextManager[None]]


class LoadingNews:
    """Holds the deadlines of requests while a model loads, and tells of it once, however many requests wait."""

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._what: str | None = None
        self._began = 0.0
        self._followers = 0
        self._next_line: Timer | None = None

    @contextmanager
    def follow(self, deadline: Deadline, models: LoadingModels) -> Generator[None]:
        """Let the time of loading count against ``LOADING_SECONDS`` in the block, instead of the deadline's own."""
        loop = asyncio.get_running_loop()

        def listen(what: str | None) -> None:
            loop.call_soon_threadsafe(self._note, what, deadline)

        self._followers += 1
        models.watch(listen)
        try:
            yield
        finally:
            models.unwatch(listen)
            self._followers -= 1
            if not self._followers:
                self._forget()

    def _note(self, what: str | None, deadline: Deadline) -> None:
        if what is None:
            deadline.release()
        else:
            deadline.hold(LOADING_SECONDS, f"{what} did not load within {LOADING_SECONDS:g} s; the next request waits again")
        if what != self._what and self._followers:
            self._tell(what)

    def _tell(self, what: str | None) -> None:
        clock = self._observers.clock
        if self._what is not None:
            self._notify(ModelLoading(what=self._what, seconds=clock.monotonic() - self._began))
            self._forget()
        if what is not None:
            self._what, self._began = what, clock.monotonic()
            self._notify(ModelLoading(what=what))
            self._next_line = clock.call_later(LOADING_NEWS_SECONDS, self._log)

    def _forget(self) -> None:
        """Stop logging: the model has loaded, or no request is waiting for it."""
        self._what = None
        if self._next_line is not None:
            self._next_line.cancel()

    def _notify(self, event: ModelLoading) -> None:
        if self._observers:
            self._observers.notify(event)

    def _log(self) -> None:
        clock = self._observers.clock
        logger.warning("still loading %s, %.0f s so far", self._what, clock.monotonic() - self._began)
        self._next_line = clock.call_later(LOADING_NEWS_SECONDS, self._log)
