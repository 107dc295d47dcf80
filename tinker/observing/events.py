"""The events that observers receive, an observer that logs, and records of exchanges."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal, NamedTuple, Protocol, Self, TextIO, TypeAlias

import msgspec

from tinker._basics.shown import clean


class Timings(NamedTuple):
    """The times of a request; None for a stage that it has not reached.

    If an operation makes several requests, ``submitted`` and ``running`` belong to the first, and
    ``fetched`` to the last.

    Attributes:
        queued: When the method was called.
        submitted: When the server accepted the request.
        running: When the server first reported that it was working on the request. Servers may omit
            this.
        fetched: When the result arrived.
    """

    queued: float | None = None
    submitted: float | None = None
    running: float | None = None
    fetched: float | None = None


_NO_METADATA: Mapping[str, object] = MappingProxyType({})


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The client that an event belongs to; every kind of event has these attributes.

    Attributes:
        operation: The name of the method; for exchanges, the operation in the contract.
        session_id: The session; None before it exists, and for clients without a session.
        training_run_id: The training run; None before it exists, and for events without a run.
        sampling_session_id: The sampling session; None before it exists, and for events without
            one.
        request_id: The server's id of the request; None before the server accepted it.
        user_metadata: The ``user_metadata`` of the session, overridden by that of the training run.
    """

    operation: str
    session_id: str | None = None
    training_run_id: str | None = None
    sampling_session_id: str | None = None
    request_id: str | None = None
    user_metadata: Mapping[str, object] = _NO_METADATA

    def __repr__(self) -> str:
        shown = (
            f"{name}={getattr(self, name)!r}"
            for name in self.__struct_fields__
            if name != "user_metadata"
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class FutureStarted(ClientEvent, frozen=True, kw_only=True):
    """An operation started: a method was called, and its work begins."""


class AttemptStarted(ClientEvent, frozen=True, kw_only=True):
    """One exchange with the server starts.

    Attributes:
        started: When it started.
        sent_nbytes: The size of the request body in bytes.
    """

    started: float
    sent_nbytes: int


class RequestAttempt(ClientEvent, frozen=True, kw_only=True):
    """One exchange with the server ended.

    Waiting for a result takes several attempts of ``retrieve_future``. The status 408 means that
    the result is not ready yet.

    Attributes:
        started: When the attempt started.
        seconds: How long the attempt took.
        sent_nbytes: The size of the request body in bytes.
        status: The HTTP status; None if there was no response.
        received_nbytes: The size of the response body in bytes.
        error: The reason for a failure; None for success, and for an abandoned attempt.
    """

    started: float
    seconds: float
    sent_nbytes: int
    status: int | None
    received_nbytes: int
    error: Exception | None


class RequestRetry(ClientEvent, frozen=True, kw_only=True):
    """An attempt failed and will be retried.

    Attributes:
        failures: The number of failures in a row.
        delay_seconds: The time until the next attempt.
        error: The error of the failed attempt.
    """

    failures: int
    delay_seconds: float
    error: Exception


class QueueChange(ClientEvent, frozen=True, kw_only=True):
    """The server reported a new state of a waiting request.

    Attributes:
        state: The state of the queue: ``active``, ``paused_capacity``, ...
        reason: The server's reason, in words; None if it gave no reason.
    """

    state: str
    reason: str | None


class FutureSettled(ClientEvent, frozen=True, kw_only=True):
    """A future has its outcome: a result if ``error`` is None and ``cancelled`` is False.

    Attributes:
        seconds: The time from the call to the outcome.
        timings: The times of the stages in between.
        error: The error of the operation; None for success.
        cancelled: Whether the future was cancelled.
    """

    seconds: float
    timings: Timings
    error: BaseException | None
    cancelled: bool


class TokensUsed(ClientEvent, frozen=True, kw_only=True):
    """The tokens of one request, as servers bill them.

    Attributes:
        base_model: The base model; None if it is not known.
        trained: Tokens processed by ``forward`` or ``forward_backward``.
        prefilled: Prompt tokens that the server had to process.
        cached: Prompt tokens that the server found in its cache.
        sampled: Tokens that the server generated.
        is_confirmed: Whether the result arrived. False means that the server accepted the request,
            but the outcome is not known, for example because you cancelled it. It may be billed.
    """

    base_model: str | None = None
    trained: int = 0
    prefilled: int = 0
    cached: int = 0
    sampled: int = 0
    is_confirmed: bool = True


class CustomLossStarted(ClientEvent, frozen=True, kw_only=True):
    """The loss function of a ``forward_backward_custom`` is called.

    Attributes:
        datum_count: The number of datums that it receives.
    """

    datum_count: int


class CustomLossEvaluated(ClientEvent, frozen=True, kw_only=True):
    """The loss function of a ``forward_backward_custom`` has returned.

    Attributes:
        seconds: How long it took, including its gradient.
        loss: The loss; None if the function failed.
        metrics: The metrics of the function.
        error: The reason for a failure; None for success.
    """

    seconds: float
    loss: float | None = None
    metrics: Mapping[str, float] = msgspec.field(default_factory=lambda: dict[str, float]())
    error: BaseException | None = None


class LossTerm(ClientEvent, frozen=True, kw_only=True):
    """A term of a loss made by :func:`tinker.regularizers.regularized` was computed, or failed.

    Attributes:
        name: The name of the term.
        step: The step of the loss, from 0, which a schedule uses to set the weight.
        weight: The weight of the term at that step; None if it could not be computed.
        value: The value of the term without its weight; None if it failed.
        contribution: The weight times the value; None if it failed.
        grad_norm: The L2 norm of the gradient of the value by all log-probabilities; None if the
            term failed or does not depend on them.
        seconds: How long the function of the term ran; None if it failed.
        error: The error of the term; None for success.
    """

    name: str
    step: int
    weight: float | None
    value: float | None
    contribution: float | None
    grad_norm: float | None
    seconds: float | None
    error: Exception | None


class SessionLost(ClientEvent, frozen=True, kw_only=True):
    """The session is lost: the server does not know it, or accepted no heartbeat for longer than
    the settings allow.

    Attributes:
        silent_seconds: The time since the server accepted the last heartbeat.
        error: The error of the last heartbeat.
    """

    silent_seconds: float
    error: Exception


CircuitState: TypeAlias = Literal["closed", "open", "half_open"]
"""The state of a circuit: requests pass, end at once, or one passes as a probe."""


class CircuitChange(ClientEvent, frozen=True, kw_only=True):
    """The state of a circuit breaker changed.

    Attributes:
        circuit: The name of the circuit; a client has one for each server, credential and kind of
            call.
        state: The new state, ``closed``, ``open`` or ``half_open``.
        failures: The number of failures in a row.
    """

    operation: str = "circuit_breaker"
    circuit: str
    state: CircuitState
    failures: int


class ModelLoading(ClientEvent, frozen=True, kw_only=True):
    """The server in this process (``local://``) is loading a model that requests wait for, or has
    finished loading it.

    Attributes:
        what: What is being loaded, such as ``torch and tinker/babble``.
        seconds: How long it took; None when loading starts.
    """

    operation: str = "loading"
    what: str
    seconds: float | None = None


RecoveryStage: TypeAlias = Literal[
    "detected", "started", "failed", "completed", "exhausted", "unknown"
]
"""The stage of the recovery of a lost run."""


class RecoveryChange(ClientEvent, frozen=True, kw_only=True):
    """A stage of the recovery of a training run, see :mod:`tinker.recovery`.

    Attributes:
        run_id: The run that was lost.
        stage: What happened: the loss was ``detected``; an attempt ``started``, ``failed`` or
            ``completed``; or no attempt is left and the recovery is ``exhausted``. ``unknown``
            means that a monitor could not get the run's state.
        attempt: The number of the attempt, from 1; 0 before the first.
        path: The checkpoint of the attempt; None if the run starts from scratch, or there is no
            attempt.
        error: The loss, or the failure of the attempt; None if it started or completed.
    """

    operation: str = "recovery"
    run_id: str
    stage: RecoveryStage
    attempt: int = 0
    path: str | None = None
    error: Exception | None = None


QueueCallback: TypeAlias = Callable[[str, str | None], object]
"""A function that receives a state of the queue and the server's reason for it."""


class QueueStateObserver(Protocol):
    """An object that :meth:`APIFuture.observe_queue` accepts instead of a function."""

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None) -> None:
        """Receive a state of the queue.

        Args:
            queue_state: The state, such as ``paused_capacity``.
            queue_state_reason: The server's reason, in words; None if it gave no reason.
        """
        ...


QueueObserver: TypeAlias = QueueCallback | QueueStateObserver
"""What :meth:`APIFuture.observe_queue` accepts: a function, or an object with a method."""
Event: TypeAlias = (
    FutureStarted
    | FutureSettled
    | AttemptStarted
    | RequestAttempt
    | RequestRetry
    | QueueChange
    | TokensUsed
    | CustomLossStarted
    | CustomLossEvaluated
    | LossTerm
    | SessionLost
    | CircuitChange
    | RecoveryChange
    | ModelLoading
)
"""Any event that an observer receives."""
Observer: TypeAlias = Callable[[Event], object]
"""A function that receives every event of a client."""


class ServerFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that a client discovered about a server.

    Attributes:
        operation: The operation that revealed it, by its name in the contract.
        finding: What the client does since then, or what the server lacks.
        evidence: The server's response.
    """

    operation: str
    finding: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.finding} ({self.evidence})"


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a client has discovered about its server so far. ``str()`` is safe for bug
    reports: it has no secrets.

    Attributes:
        base_url: The address of the server.
        sdk_version: The SDK version that the client sends to the server.
        facts: The facts in the order of discovery. A newer fact replaces an older one about the
            same subject.

    >>> fact = ServerFact(operation="telemetry", finding="absent", evidence="404")
    >>> print(ServerInfo(base_url="http://server", sdk_version="0.38.0", facts=(fact,)))
    http://server, client reported as SDK 0.38.0
    telemetry: absent (404)
    """

    base_url: str
    sdk_version: str
    facts: tuple[ServerFact, ...]

    def __str__(self) -> str:
        return "\n".join(
            (f"{self.base_url}, client reported as SDK {self.sdk_version}", *map(str, self.facts))
        )


class LogObserver:
    """Observer that writes a line to your logger for each important event.

    Outcomes, retries and queue changes are logged at ``level``, failures at WARNING, single
    exchanges at DEBUG. Each record has the attributes ``session_id``, ``training_run_id``,
    ``sampling_session_id``, ``request_id`` and ``user_metadata``, for JSON formatters.

    Args:
        logger: The logger, or its name.
        level: The level of events that are not failures.

    >>> import logging, tinker
    >>> from tinker.observing import LogObserver
    >>> service = tinker.ServiceClient(
    ...     base_url="local://toy", observers=[LogObserver("my.run", level=logging.DEBUG)]
    ... )
    """

    def __init__(
        self, logger: logging.Logger | str = "tinker.events", *, level: int = logging.INFO
    ) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level = level

    def __call__(self, event: Event) -> None:
        """Log one event, if it is one that is logged."""
        level, text = self._describe(event)
        if text is not None and self._logger.isEnabledFor(level):
            about = {
                name: getattr(event, name)
                for name in ClientEvent.__struct_fields__
                if name != "operation"
            }
            about["user_metadata"] = dict(event.user_metadata)
            self._logger.log(level, "%s %s", event.operation, clean(text), extra=about)

    def _describe(self, event: Event) -> tuple[int, str | None]:
        match event:
            case FutureSettled(error=None, cancelled=False):
                return self._level, f"took {event.seconds:.3f} s"
            case FutureSettled():
                return (
                    logging.WARNING,
                    f"failed after {event.seconds:.3f} s: {event.error or 'cancelled'}",
                )
            case RequestRetry():
                return (
                    self._level,
                    (
                        f"failed {event.failures} times, retrying "
                        f"in {event.delay_seconds:.1f} s: {event.error}"
                    ),
                )
            case QueueChange():
                return self._level, f"is {event.state}" + (
                    f": {event.reason}" if event.reason else ""
                )
            case SessionLost():
                return (
                    logging.WARNING,
                    f"lost its session, silent for {event.silent_seconds:.0f} s: {event.error}",
                )
            case CircuitChange():
                return (
                    logging.WARNING,
                    f"{event.circuit} is {event.state} after {event.failures} failures in a row",
                )
            case RecoveryChange():
                return logging.WARNING, f"of {event.run_id} {event.stage}" + (
                    f": {event.error}" if event.error else ""
                )
            case ModelLoading():
                return self._level, event.what + (
                    " began" if event.seconds is None else f" took {event.seconds:.1f} s"
                )
            case CustomLossEvaluated():
                outcome = (
                    f"loss {event.loss:g}" if event.loss is not None else f"failed: {event.error}"
                )
                return logging.DEBUG, f"{outcome}, {event.seconds:.3f} s in your function"
            case TokensUsed():
                counts = {
                    name: getattr(event, name)
                    for name in ("trained", "prefilled", "cached", "sampled")
                }
                return logging.DEBUG, "used " + ", ".join(
                    f"{name} {count}" for name, count in counts.items() if count
                )
            case RequestAttempt():
                return (
                    logging.DEBUG,
                    f"returned {event.status or 'no response'} in {event.seconds:.3f} s",
                )
            case _:
                return logging.DEBUG, None


class ExchangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one exchange that are safe to share: no credentials, no signed URLs, and the
    beginning of each body.

    Attributes:
        operation: The name in the contract.
        method: The HTTP method.
        path: The path and the query.
        request_headers: The request headers, by name in lower case. Values not known to be harmless
            are redacted.
        request_nbytes: The size of the request body in bytes.
        request_body: The beginning of a JSON body, with secrets redacted; for other bodies, their
            type; None without a body.
        status: The HTTP status; None if there was no response.
        response_headers: The response headers.
        response_nbytes: The size of the response body in bytes.
        response_body: The beginning of the response body, in the form of ``request_body``.
        seconds: How long the exchange took.
        error: The reason why there was no response; None if there was one.
    """

    operation: str
    method: str
    path: str
    request_headers: Mapping[str, str]
    request_nbytes: int
    request_body: str | None
    status: int | None
    response_headers: Mapping[str, str]
    response_nbytes: int
    response_body: str | None
    seconds: float
    error: str | None

    def to_json(self) -> str:
        """Return the record as one line of JSON."""
        import json

        return json.dumps(msgspec.structs.asdict(self))


ExchangeSink: TypeAlias = Callable[[ExchangeRecord], object]
"""A function that receives every HTTP exchange of a client, without secrets."""


class ExchangeLog:
    """A log of exchanges that runs until it is closed. Created by :func:`log_exchanges`."""

    def __init__(self, sink: ExchangeSink, file: TextIO | None = None) -> None:
        self.sink = sink
        self._file = file

    def close(self) -> None:
        """End the log and keep its records. Closing again has no effect."""
        _replace_sinks(lambda sinks: tuple(one for one in sinks if one is not self.sink))
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def log_exchanges(target: str | Path | ExchangeSink | None = None) -> ExchangeLog:
    """Log every later exchange of every client in this process, without secrets, for a bug report.

    Args:
        target: A file, to which one line of JSON is appended for each exchange; or a function that
            takes an :class:`ExchangeRecord` and runs on the client's I/O thread. None writes lines
            of JSON to standard error.

    Returns:
        The log. Close it, or use it as a context manager.

    Raises:
        OSError: The file cannot be written.

    >>> import tinker
    >>> from tinker.observing import log_exchanges
    >>> seen = []
    >>> with log_exchanges(seen.append):
    ...     answer = tinker.ServiceClient(
    ...         base_url="local://toy", api_key="tml-hush"
    ...     ).get_server_capabilities()
    >>> seen[-1].operation, seen[-1].status, seen[-1].request_headers["x-api-key"]
    ('get_server_capabilities', 200, '<redacted>')
    """
    log = open_log(target)
    _replace_sinks(lambda sinks: (*sinks, log.sink))
    return log


def open_log(target: str | Path | ExchangeSink | None) -> ExchangeLog:
    """Create an empty log."""
    if callable(target):
        return ExchangeLog(target)
    if target is None:
        return ExchangeLog(LineWriter(sys.stderr))
    file = Path(target).open("a", encoding="utf-8")  # noqa: SIM115 - open until the log is closed
    return ExchangeLog(LineWriter(file), file)


class LineWriter:
    """A sink that writes each record as a line of JSON, from any thread."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, record: ExchangeRecord) -> None:
        """Write one record, unless the file has been closed."""
        with self._lock:
            if not self._file.closed:
                self._file.write(f"{record.to_json()}\n")
                self._file.flush()


_lock = threading.Lock()
_sinks: tuple[ExchangeSink, ...] = ()


def exchange_sinks() -> tuple[ExchangeSink, ...]:
    """Return the sinks for exchanges of this process; usually none."""
    return _sinks


def _replace_sinks(change: Callable[[tuple[ExchangeSink, ...]], tuple[ExchangeSink, ...]]) -> None:
    global _sinks
    with _lock:
        _sinks = change(_sinks)
