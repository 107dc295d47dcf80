"""What is told of exchanges: events to the observers of a client, and redacted logs."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import structs
from tinker_wire import models

from tinker._futures import CURRENT_OPERATION, EventLabels, OperationProgress
from tinker._http.messages import ExchangeFailed, HTTPEngine, PreparedRequest, RawResponse
from tinker._http.retry import Verdict
from tinker._http.submission import Wait
from tinker._loop import Clock, must_pass
from tinker._wire import json
from tinker.observing import (
    ClientEvent,
    Event,
    ExchangeRecord,
    ExchangeSink,
    Observer,
    RequestRetry,
)

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
            "user_metadata": self._metadata_of(labels),
        }
        return structs.replace(
            event, **{name: getattr(event, name) or value for name, value in known.items()}
        )

    def _metadata_of(self, labels: EventLabels | None) -> Mapping[str, object]:
        """Return the user's metadata of the session, overridden by that of the run."""
        if labels is None or not labels.user_metadata:
            return self._metadata
        return {**self._metadata, **labels.user_metadata}

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


HIDDEN = "<redacted>"
# Patterns are compiled when they are first needed, which in most processes is never.
#: Text that is a secret wherever it stands: keys, JSON web tokens, bearer tokens.
HIDDEN_TEXT = (
    r"(?i)\b(?:tml|sk|hf|ghp|github_pat)[-_][^\s'\",]+|\bAKIA\w{12,}|eyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"
    r"|\b(?:bearer|basic)\s+[^\s'\",]+"
)
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


def hide_signature(url: str) -> str:
    """Return a signed URL as errors show it: without its query, and without tokens in its path."""
    return re.sub(HIDDEN_TEXT, HIDDEN, url.partition("?")[0])


async def send_logged(
    engine: HTTPEngine, request: PreparedRequest, clock: Clock, sinks: Sequence[ExchangeSink]
) -> RawResponse:
    """Make one exchange and report it to the sinks."""
    began = clock.monotonic()
    try:
        response = await engine.send(request)
    except BaseException as error:
        _report(request, None, clock.monotonic() - began, error, sinks)
        raise
    _report(request, response, clock.monotonic() - began, None, sinks)
    return response


def _report(
    request: PreparedRequest,
    response: RawResponse | None,
    seconds: float,
    error: BaseException | None,
    sinks: Sequence[ExchangeSink],
) -> None:
    try:
        record = _record(request, response, seconds, error)
        for sink in sinks:
            sink(record)
    except Exception:
        logger.exception("could not log an exchange")


def _record(
    request: PreparedRequest,
    response: RawResponse | None,
    seconds: float,
    error: BaseException | None,
) -> ExchangeRecord:
    shown = Redactor(request)
    reason = (
        f"{type(error).__name__}: {error}"
        if isinstance(error, ExchangeFailed)
        else type(error).__name__
    )
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
        error=None if error is None else shown.text(reason),
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
        return re.sub(HIDDEN_TEXT, HIDDEN, re.sub(_ADDRESS, rf"\1{HIDDEN}", text))

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
            return self._shorten_list(cast("list[object]", value), depth)
        return self._shorten_object(cast("dict[str, object]", value).items(), depth)

    def _shorten_list(self, values: list[object], depth: int) -> list[object]:
        shown = [self._shorten(one, depth + 1) for one in values[:_MOST_ITEMS]]
        return shown if len(values) <= _MOST_ITEMS else [*shown, f"... {len(values)} items"]

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
