"""Redacted records of exchanges with a server, for bug reports."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO, TypeAlias

import msgspec


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
