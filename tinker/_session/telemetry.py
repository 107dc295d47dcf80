"""What a client reports about itself, where the user allows it: that a session began and ended, and what failed in between.

Off unless ``TINKER_TELEMETRY`` or ``ServiceClient(telemetry=True)`` says so. It observes like any observer (`tinker.observing`)
and nothing waits for it: events are sent in batches in the background, the oldest are dropped where there are too many, and a
server that does not want them is not asked again. No credential is in them, no data, no traceback, and of errors that are not
of this package only their type.
"""

from __future__ import annotations

import datetime
import logging
import platform
import re
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypedDict

from tinker_wire import models
from tinker_wire.api import telemetry as api

from tinker._http import HIDDEN_TEXT, ONE_SHOT, Purpose, Transport, Verdict, is_absent, is_user_fault, judge
from tinker.errors import APIError, RequestFailedError, TinkerError
from tinker.observing import Event, FutureSettled

logger = logging.getLogger("tinker")

FLUSH_SECONDS = 10.0
EVENTS_IN_A_REQUEST = 100
EVENTS_KEPT = 10_000
_LONGEST_MESSAGE = 500
_PROCESS = str(uuid.uuid4())


class _Common(TypedDict):
    """The fields that every event has."""

    event_id: str
    event_session_index: int
    severity: models.Severity
    timestamp: datetime.datetime


class Telemetry:
    """Reports of one service client, from ``ServiceClient.get_telemetry``. All methods are safe in any thread."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._events: deque[models.TelemetryEvent] = deque(maxlen=EVENTS_KEPT)
        self._count = 0
        self._dropped = False
        self._session_id: str | None = None
        self._began = self._now()
        self.wanted: bool = True

    def __call__(self, event: Event) -> None:
        """Report a failure."""
        if isinstance(event, FutureSettled) and event.error is not None:
            self.log_exception(event.error, operation=event.operation)

    def log(self, event_name: str, event_data: Mapping[str, object] | None = None, severity: models.Severity = "INFO") -> None:
        """Report a custom event. It is sent unchanged, so do not include secrets."""
        self._add(models.GenericEvent(event_name=event_name, event_data=dict(event_data or {}), **self._common(severity)))

    def log_exception(
        self, exception: BaseException, severity: models.Severity = "ERROR", *, operation: str | None = None
    ) -> None:
        """Report an error: what kind, and of this package's errors what they say, unless the user was at fault."""
        kind = type(exception).__name__
        if isinstance(exception, TinkerError) and not is_user_error(exception):
            text = f"{operation}: {exception}" if operation else str(exception)
            event = models.UnhandledExceptionEvent(
                error_type=kind, error_message=self._without_secrets(text), **self._common(severity)
            )
            self._add(event)
            return
        known = {"error_type": kind, "operation": operation, "status_code": getattr(exception, "status_code", None)}
        self.log("user_error", {name: value for name, value in known.items() if value is not None}, "WARNING")

    # ------------------------------------------------------------------------------------------------- used on the loop only

    def begin_session(self, session_id: str) -> None:
        """Begin to report about a session."""
        self._session_id = session_id
        self._began = self._now()
        self._add(models.SessionStartEvent(**self._common("INFO")))

    async def run(self) -> None:
        """Send what there is, from time to time."""
        while self.wanted:
            await self._transport.clock.timer(FLUSH_SECONDS)
            try:
                await self.flush()
            except Exception as error:
                logger.debug("telemetry: %s", error, exc_info=error)

    async def end_session(self) -> None:
        """Send the rest."""
        if self._session_id is not None:
            self._add(models.SessionEndEvent(duration=str(self._now() - self._began), **self._common("INFO")))
            await self.flush()

    async def flush(self) -> None:
        """Send everything that is there now; what a server that cannot be reached did not get is kept for the next time."""
        while self._events and self.wanted:
            batch = [self._events.popleft() for _ in range(min(len(self._events), EVENTS_IN_A_REQUEST))]
            try:
                await self._transport.send(api.telemetry(self._request(batch)), ONE_SHOT, purpose=Purpose.HEARTBEAT)
            except APIError as error:
                self._note_refusal(error, batch)
                return

    def _note_refusal(self, error: APIError, batch: list[models.TelemetryEvent]) -> None:
        logger.debug("telemetry: %s", error)
        if is_absent(error):
            self._transport.findings.note_absence(api.telemetry.__name__, error)
            self.wanted = False
            self._events.clear()
        elif judge(error) is not Verdict.FATAL:
            self._events.extendleft(reversed(batch[: EVENTS_KEPT - len(self._events)]))

    def _request(self, batch: list[models.TelemetryEvent]) -> models.TelemetrySendRequest:
        return models.TelemetrySendRequest(
            events=batch,
            platform=platform.system(),
            sdk_version=self._transport.config.sdk_version,
            session_id=self._session_id or f"sessionless-{_PROCESS}",
            process_uuid=_PROCESS,
        )

    # ------------------------------------------------------------------------------------------------------------- internals

    def _add(self, event: models.TelemetryEvent) -> None:
        if not self.wanted:
            return
        if len(self._events) == EVENTS_KEPT and not self._dropped:
            self._dropped = True
            logger.warning("telemetry: more than %d events are waiting; dropping the oldest", EVENTS_KEPT)
        self._events.append(event)

    def _common(self, severity: models.Severity) -> _Common:
        index, self._count = self._count, self._count + 1
        return {
            "event_id": str(uuid.uuid4()),
            "event_session_index": index,
            "severity": severity,
            "timestamp": self._now(),
        }

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._transport.clock.wall(), datetime.UTC)

    def _without_secrets(self, text: str) -> str:
        key = self._transport.config.api_key
        return re.sub(HIDDEN_TEXT, "***", text.replace(key, "***") if key else text)[:_LONGEST_MESSAGE]


def is_user_error(exception: BaseException) -> bool:
    """Return whether it, or what it came of, is the user's fault: the server says so, or a status from 400 on but for 408."""
    return any(_is_users(one) for one in _chain(exception))


def _is_users(error: BaseException) -> bool:
    if isinstance(error, RequestFailedError):
        return error.category == "user"
    return is_user_fault(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # pyright: ignore[reportUnnecessaryComparison]
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
