"""Logs: an observer that writes events to a logger, and records of exchanges, without secrets."""

from __future__ import annotations

import itertools
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec
from tinker_wire import models

from tinker._basics.events import (
    CircuitChange,
    ClientEvent,
    CustomLossEvaluated,
    Event,
    FutureSettled,
    ModelLoading,
    QueueChange,
    RecoveryChange,
    RequestAttempt,
    RequestRetry,
    SessionLost,
    TokensUsed,
)
from tinker._basics.shown import HIDDEN, clean, hide_secrets
from tinker._http.messages import ExchangeFailed, PreparedRequest, RawResponse
from tinker._http.observers import RECORDERS
from tinker._wire import json

logger: logging.Logger = logging.getLogger("tinker")


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
                return logging.DEBUG, "used " + ", ".join(
                    f"{name} {count}"
                    for name in ("trained", "prefilled", "cached", "sampled")
                    if (count := getattr(event, name))
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

    def __call__(
        self, request: PreparedRequest, outcome: RawResponse | BaseException, seconds: float
    ) -> None:
        """Hand the record of an exchange to the sink. Failures are logged."""
        try:
            self.sink(_record(request, outcome, seconds))
        except Exception:
            logger.exception("could not log an exchange")

    def close(self) -> None:
        """End the log and keep its records. Closing again has no effect."""
        with suppress(ValueError):  # it was closed before, or never added
            RECORDERS.remove(self)
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
    RECORDERS.append(log)
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


def exchange_sinks() -> tuple[ExchangeSink, ...]:
    """Return the sinks for exchanges of this process; usually none."""
    return tuple(one.sink for one in RECORDERS if isinstance(one, ExchangeLog))


_HIDDEN_NAME = (
    r"(?i)secret|passw|api[-_]?key|authorization|credential|cookie|signature|jwt|private"
    r"|(?:^|[-_])(?:token|urls?)$"
)
_ADDRESS = r"(?i)(https?://)[^\s'\"<>]+"
_SHOWN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "retry-after",
        "retry-after-ms",
        "server",
        "traceparent",
        "transfer-encoding",
        "user-agent",
        "x-idempotency-key",
        "x-request-id",
        "x-should-retry",
        "x-tinker-create-promise-roundtrip-time",
        "x-tinker-request-iteration",
        "x-tinker-request-type",
        "x-tinker-sampling-backpressure",
    }
)
_SECRET_FIELDS: frozenset[str] = frozenset[str]().union(
    *(
        getattr(record, "_secret_fields", ())
        for record in vars(models).values()
        if isinstance(record, type)
    )
)
_LARGEST_NBYTES = 1 << 20  # of a body that is looked into
_MOST_ITEMS, _MOST_NAMES, _DEEPEST = 8, 40, 8
_LONGEST_TEXT, _LONGEST_BODY = 200, 2000
_SHORTEST_SECRET = 6


def _record(
    request: PreparedRequest, outcome: RawResponse | BaseException, seconds: float
) -> ExchangeRecord:
    shown, response, error = Redactor(request), None, None
    if isinstance(outcome, BaseException):
        kind = type(outcome).__name__
        error = shown.text(f"{kind}: {outcome}" if isinstance(outcome, ExchangeFailed) else kind)
    else:
        response = outcome
    return ExchangeRecord(
        operation=request.operation,
        method=request.method,
        path=shown.path(),
        request_headers=shown.headers(request.headers),
        request_nbytes=request.nbytes,
        request_body=shown.request_body(),
        status=None if response is None else response.status,
        response_headers={} if response is None else shown.headers(response.headers),
        response_nbytes=0 if response is None else len(response.content),
        response_body=None if response is None else shown.response_body(response),
        seconds=seconds,
        error=error,
    )


class Redactor:
    """Shows the parts of one exchange without the secrets of its request."""

    def __init__(self, request: PreparedRequest) -> None:
        self._request = request
        hidden = {value for name, value in request.headers.items() if not self._is_shown(name)}
        self._values = sorted(
            (value for value in hidden if len(value) >= _SHORTEST_SECRET), key=len, reverse=True
        )

    def path(self) -> str:
        """Return path and query of the request, without its host."""
        parts = urlsplit(self._request.shown_url)
        return self.text(f"{parts.path}?{parts.query}" if parts.query else parts.path)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers, with all values redacted except those known to be harmless."""
        shown = {
            name.lower(): self.text(value) if self._is_shown(name) else HIDDEN
            for name, value in headers.items()
        }
        return dict(sorted(shown.items()))

    def request_body(self) -> str | None:
        """Return the beginning of the request body; None if there is no body."""
        return self._body(
            b"".join(self._request.body[:1]),
            self._request.nbytes,
            self._request.headers.get("Content-Type", ""),
        )

    def response_body(self, response: RawResponse) -> str | None:
        """Return the beginning of the response body; None if there is no body."""
        if self._request.has_own_credential:  # a secret was asked for, and this may be one
            return HIDDEN
        return self._body(response.content, len(response.content), response.media_type)

    def text(self, text: str) -> str:
        """Remove the secrets of the request, and anything that looks like a secret, from a text."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return hide_secrets(re.sub(_ADDRESS, rf"\1{HIDDEN}", text))

    def _is_shown(self, name: str) -> bool:
        return name.lower() in _SHOWN_HEADERS and name.lower() not in self._request.secret_headers

    def _body(self, content: bytes, nbytes: int, media_type: str) -> str | None:
        if not nbytes:
            return None
        if (
            not media_type.startswith(json.MEDIA_TYPE)
            or nbytes > _LARGEST_NBYTES
            or len(content) < nbytes
        ):
            return f"<{media_type or 'no media type'}>"
        try:
            value: object = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "<not JSON>"
        shown = msgspec.json.encode(self._shorten(value, 0)).decode()
        return shown if len(shown) <= _LONGEST_BODY else f"{shown[:_LONGEST_BODY]}..."

    def _shorten(self, value: object, depth: int) -> object:
        """Return a JSON value with secrets hidden and long parts shortened."""
        if isinstance(value, str):
            return self.text(value)[:_LONGEST_TEXT]
        if not isinstance(value, dict | list):
            return value
        if depth >= _DEEPEST:
            return "..."
        if isinstance(value, list):
            values = cast("list[object]", value)
            shown = [self._shorten(one, depth + 1) for one in values[:_MOST_ITEMS]]
            return shown if len(values) <= _MOST_ITEMS else [*shown, f"... {len(values)} items"]
        return self._shorten_object(cast("dict[str, object]", value).items(), depth)

    def _shorten_object(
        self, fields: Iterable[tuple[str, object]], depth: int
    ) -> dict[str, object]:
        shown: dict[str, object] = {}
        for name, value in itertools.islice(fields, _MOST_NAMES):
            hidden = is_secret_name(name) and value is not None
            shown[self.text(name)[:_LONGEST_TEXT]] = (
                HIDDEN if hidden else self._shorten(value, depth + 1)
            )
        return shown


def is_secret_name(name: str) -> bool:
    """Return whether a field of this name contains a secret, according to the contract or to common
    names of secrets.
    """
    return name in _SECRET_FIELDS or re.search(_HIDDEN_NAME, name) is not None
