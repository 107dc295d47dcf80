"""What one client tells about itself: events to its observers, whose exceptions end here, and failures to the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tinker._clock import Clock
from tinker._loop import must_pass
from tinker.observing import Event, Observer

logger = logging.getLogger("tinker")
NEWS_SECONDS = 30.0


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

    def notify(self, event: Event) -> None:
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

    def should_log(self, subject: str, seconds: float = NEWS_SECONDS) -> bool:
        """Return whether the log has had no line on the subject for so long; if so, one is written now."""
        now = self.clock.monotonic()
        if now - self._told.get(subject, -seconds) < seconds:
            return False
        self._told[subject] = now
        return True
