"""What is told of exchanges: events to the observers of a client, and all to recorders."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import structs

from tinker._basics.events import ClientEvent, Event, Observer, RequestRetry
from tinker._futures import CURRENT_OPERATION, OperationProgress
from tinker._http.messages import HTTPEngine, PreparedRequest, RawResponse
from tinker._http.retry import Verdict
from tinker._http.submission import Wait
from tinker._loop import Clock, must_pass

logger = logging.getLogger("tinker")
NEWS_SECONDS = 30.0
# of the server's text, in the log; it may be a traceback, and the raised error contains the whole
# text
LINE_LENGTH = 300


class Observers:
    """The observers of one client. It is false if there are none, so that no event is created."""

    def __init__(
        self,
        clock: Clock,
        observers: Iterable[Observer] = (),
        user_metadata: Mapping[str, object] | None = None,
    ) -> None:
        self.clock = clock
        self.given: tuple[Observer, ...] = tuple(observers)
        self._own: tuple[Observer, ...] = ()
        #: The user's observers and those that are a part of the client.
        self.active: tuple[Observer, ...] = self.given
        self._failed: set[int] = set()
        self._told: dict[str, float] = {}
        self._metadata: Mapping[str, object] = dict(user_metadata or {})
        self.session_id: str | None = None

    def add(self, observer: Observer) -> None:
        """Add an observer of the user."""
        self.given = (*self.given, observer)
        self.active = (*self.given, *self._own)

    def remove(self, observer: Observer) -> None:
        """Remove an observer of the user."""
        self.given = tuple(one for one in self.given if one != observer)
        self.active = (*self.given, *self._own)

    def add_own(self, observer: Observer) -> None:
        """Add an observer that is a part of the client."""
        self._own = (*self._own, observer)
        self.active = (*self.given, *self._own)

    def __bool__(self) -> bool:
        return bool(self.active)

    def notify(self, event: Event, progress: OperationProgress | None = None) -> None:
        """Call each observer with the event and its origin: the given operation, or the operation
        of the current task.
        """
        told = (
            self._identify(event, progress or CURRENT_OPERATION.get())
            if isinstance(event, ClientEvent)  # pyright: ignore[reportUnnecessaryIsInstance]
            else event
        )
        for observer in self.active:
            try:
                observer(told)
            except BaseException as error:
                if must_pass(error):
                    raise
                if id(observer) not in self._failed:
                    self._failed.add(id(observer))
                    logger.exception(
                        "the observer %r failed; it stays registered, and later "
                        "failures are not logged",
                        observer,
                    )

    def _identify(self, event: Event, progress: OperationProgress | None) -> Event:
        labels = None if progress is None else progress.labels
        known: dict[str, Any] = {
            "session_id": self.session_id,
            "training_run_id": None if labels is None else labels.training_run_id,
            "sampling_session_id": None if labels is None else labels.sampling_session_id,
            "request_id": None if progress is None else progress.request_id,
            "user_metadata": self._metadata
            if labels is None or not labels.user_metadata
            # of the session, overridden by that of the run
            else {**self._metadata, **labels.user_metadata},
        }
        return structs.replace(
            event, **{name: getattr(event, name) or value for name, value in known.items()}
        )

    def report_retry(self, what: str, wait: Wait) -> None:
        """Send an event and log a line. The first failure and later ones at intervals are warnings;
        the rest are DEBUG.
        """
        if wait.verdict is Verdict.RESUBMIT:
            return
        if self.active:
            self.notify(
                RequestRetry(
                    operation=what,
                    failures=wait.failures,
                    delay_seconds=wait.seconds,
                    error=wait.error,
                )
            )
        level = (
            logging.WARNING if self.should_log(f"{what} {wait.verdict.value}") else logging.DEBUG
        )
        if not logger.isEnabledFor(level):
            return
        text = " ".join(str(wait.error).split())
        shown = text if len(text) <= LINE_LENGTH else f"{text[:LINE_LENGTH]} ..."
        if wait.verdict is Verdict.PAUSE:
            logger.log(level, "%s is paused: %s; retrying every %g s", what, shown, wait.seconds)
        else:
            shown = shown.removesuffix(".").removesuffix(f" ({what})")
            retry = (
                f"attempt {wait.failures} failed, retrying in {wait.seconds:.1f} s, for up to "
                f"{wait.left_seconds:.0f} s"
            )
            logger.log(level, "%s: %s; %s", what, shown, retry)

    def should_log(self, subject: str, seconds: float = NEWS_SECONDS) -> bool:
        """Return whether the subject may be logged now, and note that it is."""
        now = self.clock.monotonic()
        if now - self._told.get(subject, -seconds) < seconds:
            return False
        self._told[subject] = now
        return True


class Recorder(Protocol):
    """What notes the exchanges of clients, such as a log of them."""

    def __call__(
        self, request: PreparedRequest, outcome: RawResponse | BaseException, seconds: float
    ) -> None:
        """Note one exchange: its response, or the error that it ended with; raises nothing."""
        ...


#: What notes the exchanges of every client in this process.
RECORDERS: list[Recorder] = []


async def send_recorded(
    engine: HTTPEngine, request: PreparedRequest, clock: Clock, recorders: Sequence[Recorder]
) -> RawResponse:
    """Make one exchange, and let the recorders note it."""
    began = clock.monotonic()
    try:
        response = await engine.send(request)
    except BaseException as error:
        for record in recorders:
            record(request, error, clock.monotonic() - began)
        raise
    for record in recorders:
        record(request, response, clock.monotonic() - began)
    return response
