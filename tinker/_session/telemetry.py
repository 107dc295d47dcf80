"""What a client reports about itself, where the user allows it: that a session began and ended, and
what failed in between.

Off unless ``TINKER_TELEMETRY`` or ``ServiceClient(telemetry=True)`` says so. It observes like any
observer (`tinker.observing`) and nothing waits for it: events are sent in batches in the
background, the oldest are dropped where there are too many, and a server that does not want them is
not asked again. No credential is in them, no data, no traceback. What an exception that is not of
this package says is sent only where the user reports it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import functools
import inspect
import itertools
import logging
import platform
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import msgspec
from tinker_wire import models
from tinker_wire.api import telemetry as api

from tinker._basics.events import Event, FutureSettled
from tinker._basics.shown import hide_secrets
from tinker._http import retry
from tinker._http.messages import Purpose
from tinker._http.transport import Transport
from tinker._loop import TaskScope, loop_thread
from tinker.errors import APIError, ClientClosedError, RequestFailedError, TinkerError
from tinker.futures import APIFuture, immediate

logger = logging.getLogger("tinker")
P = ParamSpec("P")
R = TypeVar("R")

FLUSH_SECONDS = 10.0
DRAIN_SECONDS = 5.0  # as the end of a session may take
RETRY_SECONDS = 1.0
EVENTS_IN_A_REQUEST = 100
EVENTS_KEPT = 10_000
_LONGEST_MESSAGE = 500
_PROCESS = str(uuid.uuid4())


class Telemetry:
    """Reporter of one service client, from ``ServiceClient.get_telemetry``. Its methods may be
    called in any thread.

    Events are sent in the background: every hundred, and every ten seconds. No method waits for the
    server, but those that say so, and they have a deadline. Exceptions are reported by their type
    and text, in which credentials are masked; tracebacks and local variables are not.

    >>> import tinker
    >>> service = tinker.ServiceClient(base_url="local://toy", telemetry=True)
    >>> training = service.create_lora_training_client("tinker/toy", rank=4)
    >>> telemetry = training.get_telemetry()
    >>> telemetry.log("epoch", {"number": 1})
    True
    >>> with telemetry.capture_exceptions(severity="CRITICAL"):
    ...     done = training.optim_step(tinker.AdamParams()).result(timeout=30)
    >>> telemetry.wait_until_drained()
    True
    """

    def __init__(self, transport: Transport, tasks: TaskScope) -> None:
        self._transport = transport
        self._tasks = tasks
        self._thread = loop_thread()
        self._events: deque[models.TelemetryEvent] = deque(maxlen=EVENTS_KEPT)
        self._numbers = itertools.count()
        self._flushing = asyncio.Lock()
        self._dropped = self._stopped = self._ended = False
        self._session_id: str | None = None
        self._began = self._now()
        self.wanted: bool = True
        transport.observers.add_own(self)

    def __call__(self, event: Event) -> None:
        """Report a failure: of this package's errors what they say, unless the user was at fault;
        of others the type.
        """
        if not isinstance(event, FutureSettled) or event.error is None:
            return
        if isinstance(event.error, TinkerError) and not is_user_error(event.error):
            self._log_unhandled(event.error, "ERROR", f"{event.operation}: {event.error}")
        else:
            self._log_user_error(event.error, "WARNING", event.operation)

    def log(
        self,
        event_name: str,
        event_data: Mapping[str, object] | None = None,
        severity: models.Severity = "INFO",
    ) -> bool:
        """Report an event of yours. It is sent unchanged, so do not include secrets.

        Args:
            event_name: What happened, from a small set of names.
            event_data: More about it, as JSON. Optional.
            severity: How grave it is.

        Returns:
            Whether it will be sent; False after :meth:`stop`, and if the server takes no telemetry.
        """
        return self._add(
            models.GenericEvent(
                event_id=str(uuid.uuid4()),
                event_session_index=next(self._numbers),
                severity=severity,
                timestamp=self._now(),
                event_name=event_name,
                event_data=dict(event_data or {}),
            )
        )

    def log_exception(
        self, exception: BaseException, severity: models.Severity | None = None
    ) -> APIFuture[bool]:
        """Report an exception, which need not be one of this package's.

        An error that the server attributes to you is an event ``user_error`` with its type only.

        Args:
            exception: The exception.
            severity: How grave it is. None means ERROR, and WARNING for an error that is attributed
                to you.

        Returns:
            A future that is done, so that it can be awaited: whether the event will be sent.
        """
        return immediate(self.log_exception_sync(exception, severity), "log_exception")

    def log_exception_sync(
        self, exception: BaseException, severity: models.Severity | None = None
    ) -> bool:
        """Report an exception, as :meth:`log_exception` does; return whether the event will be
        sent.
        """
        if is_user_error(exception):
            return self._log_user_error(exception, severity or "WARNING")
        return self._log_unhandled(exception, severity or "ERROR", str(exception))

    def log_fatal_exception(
        self, exception: BaseException, severity: models.Severity | None = None
    ) -> APIFuture[bool]:
        """Report an exception that ends the program, and the end of the session.

        Args:
            exception: The exception.
            severity: As of :meth:`log_exception`.

        Returns:
            A future of whether everything was sent, which is done after five seconds at the latest.
        """
        self.log_exception_sync(exception, severity)
        self._log_end()
        return self._drain_soon(DRAIN_SECONDS)

    def log_fatal_exception_sync(
        self, exception: BaseException, severity: models.Severity | None = None
    ) -> bool:
        """Report what :meth:`log_fatal_exception` does, and block for five seconds at most; return
        whether it was sent.
        """
        return self._wait(self.log_fatal_exception(exception, severity), DRAIN_SECONDS)

    def capture_exceptions(
        self, fatal: bool = False, severity: models.Severity | None = None
    ) -> Capture:
        """Return a block, or a decorator of functions and coroutine functions, that reports the
        exception that leaves it.

        Args:
            fatal: Whether an exception ends the program, as for :meth:`log_fatal_exception`, which
                is waited for.
            severity: As of :meth:`log_exception`.

        Returns:
            An object for ``with``, ``async with`` and ``@``. The exception is raised again.
        """
        return Capture(self, fatal, severity)

    acapture_exceptions = capture_exceptions

    def wait_until_drained(self, timeout_seconds: float = DRAIN_SECONDS) -> bool:
        """Block until every event is sent.

        Args:
            timeout_seconds: The longest time to wait in seconds. On the client's I/O thread it is
                0.

        Returns:
            Whether nothing is left to send.
        """
        return self._wait(self._drain_soon(timeout_seconds), timeout_seconds)

    async def wait_until_drained_async(self, timeout_seconds: float = DRAIN_SECONDS) -> bool:
        """Await what :meth:`wait_until_drained` returns."""
        try:
            return await asyncio.wait_for(
                self._drain_soon(timeout_seconds).coroutine(), timeout_seconds
            )
        except TimeoutError:
            return False

    def stop(self) -> None:
        """Report nothing from now on. What is waiting is sent once more, in the background."""
        self._stopped = True
        self._drain_soon(DRAIN_SECONDS)

    # ------------------------------------------------------------------------ used on the loop only

    def begin_session(self, session_id: str) -> None:
        """Begin to report about a session."""
        self._session_id = session_id
        self._began = self._now()
        self._add(
            models.SessionStartEvent(
                event_id=str(uuid.uuid4()),
                event_session_index=next(self._numbers),
                severity="INFO",
                timestamp=self._now(),
            )
        )
        self._tasks.background("telemetry", self.run)

    def lose_session(self) -> None:
        """Wait for the next session."""
        self._tasks.cancel("telemetry")

    async def run(self) -> None:
        """Send what there is, from time to time."""
        while self.wanted:
            await self._transport.clock.timer(FLUSH_SECONDS)
            await self.flush()

    async def end_session(self) -> None:
        """Send the rest."""
        self._log_end()
        if self._session_id is not None:
            await self.flush()

    async def flush(self) -> None:
        """Send everything that is there now; what a server that cannot be reached did not get is
        kept for the next time.
        """
        async with self._flushing:
            while self._events and self.wanted:
                batch = [
                    self._events.popleft()
                    for _ in range(min(len(self._events), EVENTS_IN_A_REQUEST))
                ]
                try:
                    await self._transport.send(
                        api.telemetry(self._request(batch)),
                        retry.ONE_SHOT,
                        purpose=Purpose.HEARTBEAT,
                    )
                except BaseException as error:
                    self._note_failure(error, batch)
                    if isinstance(error, Exception):
                        return
                    raise

    def _note_failure(self, error: BaseException, batch: list[models.TelemetryEvent]) -> None:
        logger.debug("telemetry: %s", error, exc_info=not isinstance(error, TinkerError))
        is_refused = isinstance(error, APIError) and retry.is_absent(error)
        if isinstance(error, APIError) and is_refused:
            self._transport.findings.note_absence(api.telemetry.__name__, error)
        if is_refused or isinstance(error, ClientClosedError):
            self.wanted = False
            self._events.clear()
        elif not isinstance(error, APIError) or retry.judge(error) is not retry.Verdict.FATAL:
            self._events.extendleft(reversed(batch[: EVENTS_KEPT - len(self._events)]))

    async def _drain(self, seconds: float) -> None:
        """Send until nothing is left, for so many seconds."""
        clock = self._transport.clock
        with suppress(TimeoutError):
            async with clock.deadline(seconds):
                await self.flush()
                while self._events:
                    await clock.sleep(RETRY_SECONDS)
                    await self.flush()

    def _request(self, batch: list[models.TelemetryEvent]) -> models.TelemetrySendRequest:
        return models.TelemetrySendRequest(
            events=batch,
            platform=platform.system(),
            sdk_version=self._transport.config.sdk_version,
            session_id=self._session_id or f"sessionless-{_PROCESS}",
            process_uuid=_PROCESS,
        )

    # ------------------------------------------------------------------------------------ internals

    def _log_unhandled(
        self, exception: BaseException, severity: models.Severity, text: str
    ) -> bool:
        key = self._transport.config.api_key
        message = hide_secrets(text.replace(key, "***") if key else text, "***")
        return self._add(
            models.UnhandledExceptionEvent(
                event_id=str(uuid.uuid4()),
                event_session_index=next(self._numbers),
                severity=severity,
                timestamp=self._now(),
                error_type=type(exception).__name__,
                error_message=message[:_LONGEST_MESSAGE],
            )
        )

    def _log_user_error(
        self, exception: BaseException, severity: models.Severity, operation: str | None = None
    ) -> bool:
        known = {
            "error_type": type(exception).__name__,
            "operation": operation,
            "status_code": getattr(exception, "status_code", None),
        }
        return self.log(
            "user_error",
            {name: value for name, value in known.items() if value is not None},
            severity,
        )

    def _log_end(self) -> None:
        if self._session_id is not None and not self._ended:
            self._ended = True
            self._add(
                models.SessionEndEvent(
                    event_id=str(uuid.uuid4()),
                    event_session_index=next(self._numbers),
                    severity="INFO",
                    timestamp=self._now(),
                    duration=str(self._now() - self._began),
                )
            )

    def _add(self, event: models.TelemetryEvent) -> bool:
        if not self.wanted or self._stopped or self._tasks.is_closed:
            return False
        if len(self._events) == EVENTS_KEPT and not self._dropped:
            self._dropped = True
            logger.warning(
                "telemetry: more than %d events are waiting; dropping the oldest", EVENTS_KEPT
            )
        self._events.append(event)
        if event.event_session_index % EVENTS_IN_A_REQUEST == EVENTS_IN_A_REQUEST - 1:
            name = f"telemetry up to {event.event_session_index}"
            self._thread.call(lambda: self._tasks.background(name, self.flush))
        return True

    def _drain_soon(self, seconds: float) -> APIFuture[bool]:
        """Begin to send what there is; return a future of whether everything was sent."""
        future: APIFuture[bool] = APIFuture("telemetry")
        # in a child made by fork the connections are its parent's
        if self._is_drained or self._thread is not loop_thread():
            future.set_result(self._is_drained)
        else:
            self._thread.call(partial(self._begin_drain, future, seconds))
        return future

    def _begin_drain(self, future: APIFuture[bool], seconds: float) -> None:
        try:
            task = self._tasks.join(f"telemetry drain {id(future)}", partial(self._drain, seconds))
        except ClientClosedError:
            self._settle(future)
        else:
            task.add_done_callback(lambda _: self._settle(future))

    def _settle(self, future: APIFuture[bool]) -> None:
        if future.set_running_or_notify_cancel():
            future.set_result(self._is_drained)

    @property
    def _is_drained(self) -> bool:
        return not self._events and not self._flushing.locked()

    def _wait(self, future: APIFuture[bool], seconds: float) -> bool:
        if not self._thread.is_current():
            concurrent.futures.wait([future], seconds)
        return future.done() and future.result()

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._transport.clock.wall(), datetime.UTC)


class Capture(msgspec.Struct, frozen=True):
    """A block, ``with`` or ``async with``, and a decorator of functions; ``reporter`` None reports
    nothing.
    """

    reporter: Telemetry | None
    fatal: bool
    severity: models.Severity | None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and self.reporter is not None:
            if self.fatal:
                self.reporter.log_fatal_exception_sync(error, self.severity)
            else:
                self.reporter.log_exception(error, self.severity)

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and self.reporter is not None:
            log = self.reporter.log_fatal_exception if self.fatal else self.reporter.log_exception
            await log(error, self.severity)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function, or a coroutine function, that runs in such a block."""
        return wrap(function, lambda _: self)


def wrap(function: Callable[P, R], find: Callable[[tuple[object, ...]], Capture]) -> Callable[P, R]:
    """Return the function, run in the block that ``find`` returns for its positional arguments."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with find(args):
                return await function(*args, **kwargs)

        return cast("Callable[P, R]", call_async)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with find(args):
            return function(*args, **kwargs)

    return call


def is_user_error(exception: BaseException) -> bool:
    """Return whether it, or what it came of, is the user's fault: the server says so, or a status
    from 400 on but for 408.
    """
    return any(
        one.category == "user" if isinstance(one, RequestFailedError) else retry.is_user_fault(one)
        for one in _chain(exception)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # pyright: ignore[reportUnnecessaryComparison]
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
