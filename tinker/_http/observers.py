"""What one client tells about itself: events to its observers, whose exceptions end here, and failures to the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

from tinker._clock import Clock
from tinker._loop import must_pass
from tinker.futures import APIFuture, failure_of, on_done
from tinker.observing import Event, FutureSettled, Observer, Timings

logger = logging.getLogger("tinker")
NEWS_SECONDS = 30.0
F = TypeVar("F", bound=APIFuture[Any])


class Observers:
    """Tells every observer every event; false where there is none, so that no event need be made."""

    def __init__(self, clock: Clock, observers: Iterable[Observer] = ()) -> None:
        self.clock = clock
        self.given: tuple[Observer, ...] = tuple(observers)
        self._all: list[Observer] = list(self.given)
        self._failed: set[int] = set()
        self._told: dict[str, float] = {}

    def add(self, observer: Observer) -> None:
        """Tell this one as well, which is not one of those that the user gave."""
        self._all.append(observer)

    def __bool__(self) -> bool:
        return bool(self._all)

    def tell(self, event: Event) -> None:
        """Call each observer."""
        for observer in self._all:
            try:
                observer(event)
            except BaseException as error:
                if must_pass(error):
                    raise
                if id(observer) not in self._failed:
                    self._failed.add(id(observer))
                    logger.exception("the observer %r failed; it is called again, and not reported again", observer)

    def is_news(self, subject: str, seconds: float = NEWS_SECONDS) -> bool:
        """Whether the log has had no line on the subject for so long; if so, one is written now."""
        now = self.clock.monotonic()
        if now - self._told.get(subject, -seconds) < seconds:
            return False
        self._told[subject] = now
        return True


def tracked(future: F, observers: Observers) -> F:
    """The future of a method that was called now, which the observers hear of when it is settled."""
    began = observers.clock.monotonic()
    future.timings = Timings(queued=began)
    if observers:
        on_done(future, partial(_settled, observers, began))
    return future


def _settled(observers: Observers, began: float, future: Any) -> None:
    cancelled = future.cancelled()
    observers.tell(
        FutureSettled(
            operation=future.operation,
            request_id=future.request_id,
            seconds=observers.clock.monotonic() - began,
            timings=future.timings,
            error=failure_of(future),
            cancelled=cancelled,
        )
    )
