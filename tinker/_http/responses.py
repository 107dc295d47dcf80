"""Convert raw responses and streams to typed values and typed errors, without credentials."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar, cast

import msgspec
from tinker_wire import models

from tinker import errors
from tinker._basics.shown import clean
from tinker._futures import TokenQueue
from tinker._http.limits import Admission
from tinker._http.messages import ExchangeFailed, PreparedRequest, RawResponse, out_of_memory
from tinker._http.retry import (
    ABSENT_STATUSES,
    GATEWAY_STATUSES,
    PROXY_HINT,
    PROXY_UNAUTHENTICATED_STATUS,
    SAMPLE,
    UNAUTHENTICATED_STATUS,
    Verdict,
)
from tinker._loop import Clock
from tinker._wire import EVENT_STREAM, EventDecoder, json
from tinker.errors import RequestFailedError, TinkerError

T = TypeVar("T")

# Limits of an error's body: bytes parsed, depth of nesting, characters shown in the message.
_PARSED_NBYTES = 1 << 20
_DEEPEST = 64
_SHOWN_CHARACTERS = 4096
_KEPT_NBYTES = 65536
_SECRET_HEADERS = frozenset(
    {
        "x-api-key",
        "authorization",
        "proxy-authorization",
        "cf-access-client-secret",
        "x-tinker-weights-access-token",
    }
)
# of a response
_HIDDEN_HEADERS = frozenset(
    {"content-encoding", "content-length", "transfer-encoding", "set-cookie"}
)
# Every server has these, so where they are absent the URL is wrong.
_ENTRIES = frozenset({"create_session", "get_server_capabilities"})
_PAGE_STARTS = (b"<!doctype html", b"<html")
#: What an error says of a URL where something else answers.
NO_API: str = "there is no Tinker API"


def decode_json(response: RawResponse, kind: type[T]) -> T:
    """Decode a JSON response as ``kind``. Raises APIResponseValidationError, which names the
    invalid part.
    """
    try:
        return json.decode(response.content, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        raise undecodable(response, error) from error


def headers_without_secrets(request: PreparedRequest) -> dict[str, str]:
    """Return the headers that may be shown and sent to another server."""
    return _without(_SECRET_HEADERS | request.secret_headers, request.headers)


def _without(hidden: frozenset[str], headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in hidden}


def _redact_request(request: PreparedRequest) -> errors.ShownExchange:
    """Return the request without body and credentials, for errors."""
    headers = headers_without_secrets(request)
    headers.pop("Content-Length", None)
    return errors.ShownExchange(request.method, request.shown_url, headers)


def _redact_response(response: RawResponse) -> errors.ShownExchange:
    headers = {
        name.lower(): value for name, value in _without(_HIDDEN_HEADERS, response.headers).items()
    }
    return _redact_request(response.request)._replace(
        status_code=response.status, headers=headers, content=response.content[:_KEPT_NBYTES]
    )


_HINTS = {
    UNAUTHENTICATED_STATUS: "; check the key (api_key or TINKER_API_KEY)",
    PROXY_UNAUTHENTICATED_STATUS: f"; {PROXY_HINT}",
}
UNREACHABLE_HINT = (
    "Check that the server is running (`tinker serve` starts one here), and its address (base_url "
    "or TINKER_BASE_URL)."
)
_REMOTE_HINT = (
    "Check this machine's connection to the network, and the address (base_url or TINKER_BASE_URL)."
)


def connection_error(
    request: PreparedRequest, failure: ExchangeFailed
) -> errors.APIConnectionError:
    """Return the error for an exchange without a response."""
    where = f"{request.method} {request.shown_url}"
    shown = _redact_request(request)
    error: errors.APIConnectionError
    if failure.too_large:
        error = errors.ResponseTooLargeError(shown, f"{request.operation}: {failure} ({where}).")
    elif failure.timed_out:
        error = errors.APITimeoutError(shown, f"Request timed out: {where}: {failure}.")
    else:
        advice = UNREACHABLE_HINT if request.url.startswith("http:") else _REMOTE_HINT
        hint = f" {advice}" if failure.never_connected and not failure.says_what_to_do else ""
        error = errors.APIConnectionError(
            message=f"Connection error: {where}: {failure}.{hint}", request=shown
        )
        error.never_connected, error.wrong_address = failure.never_connected, failure.wrong_address
    error.never_ran = failure.never_ran
    error.operation = request.operation
    return error


def status_error(response: RawResponse, clock: Clock) -> errors.APIStatusError:
    """Return the error for a response with an error status."""
    body = parse_body(response)
    operation = response.request.operation
    text = f"Error code: {response.status}"
    if misdirection := _describe_misdirection(response):
        text += f" - {shorten(misdirection)}"
    else:
        said = f" - {shorten(find_explanation(body) or str(body))}" if body else ""
        text += said + _HINTS.get(response.status, "") + (f" ({operation})" if operation else "")
    kind = errors.status_error_type(response.status)
    error = kind(text, response=_redact_response(response), body=body)
    error.operation = operation
    error.retry_after = read_requested_delay(response.headers, clock)
    return error


def read_requested_delay(headers: Mapping[str, str], clock: Clock) -> float | None:
    """Read the seconds to wait from ``retry-after-ms``, or from ``retry-after`` in seconds or as a
    date. None means no hint.
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = None if (value := headers.get(name)) is None else _seconds(value, scale, clock)
        if seconds is not None and seconds > 0:
            return seconds
    return None


def _seconds(value: str, scale: float, clock: Clock) -> float | None:
    try:
        seconds = float(value) * scale
        return seconds if seconds == seconds else None
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime  # a date is rare

    try:
        return parsedate_to_datetime(value).timestamp() - clock.wall()
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        return None


def undecodable(response: RawResponse, error: Exception, operation: str = "") -> errors.APIError:
    """Return the error for a success that cannot be decoded, or not within the memory;
    ``operation`` is the caller's.
    """
    if isinstance(error, MemoryError):
        return connection_error(response.request, out_of_memory(len(response.content)))
    return invalid_response(response, str(error), operation)


def invalid_response(
    response: RawResponse, fault: str, operation: str = ""
) -> errors.APIResponseValidationError:
    """Return the error for a success that does not match the contract; ``fault`` is the reason,
    ``operation`` the caller's.
    """
    said = (
        _describe_misdirection(response, of_success=True)
        or f"{operation or response.request.operation}: {fault}"
    )
    if response.request.has_own_credential:  # a secret was asked for, and this may be one
        response = msgspec.structs.replace(response, content=b"")
    message = f"The server's response does not match the contract: {shorten(said)}"
    shown = _redact_response(response)
    error = errors.APIResponseValidationError(
        shown.response(shown.request()), parse_body(response), message=message
    )
    error.operation = response.request.operation
    return error


def shorten(text: str) -> str:
    """Return a server's text as an error shows it: its beginning, in one line of printable
    characters.
    """
    if len(text) <= _SHOWN_CHARACTERS:
        return clean(text)
    return f"{clean(text[:_SHOWN_CHARACTERS])}... ({len(text)} characters in total)"


def parse_body(response: RawResponse) -> object:
    """Parse the JSON of a response. Otherwise return the beginning of its text; None if it is empty
    or not text.
    """
    if not response.content:
        return None
    if len(response.content) <= _PARSED_NBYTES:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value: object = msgspec.json.decode(response.content)
            if not _is_deep(value):
                return value
    return _beginning(response.content)


def _beginning(content: bytes) -> str | None:
    """Return the beginning of a text, up to the length that is shown. A truncated character is
    omitted.
    """
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content[:_SHOWN_CHARACTERS])
    except UnicodeDecodeError:
        return None


def _is_deep(value: object) -> bool:
    """Return whether a value is nested so deeply that printing or pickling it may fail."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _values_in(one)]
        if not level:
            return False
    return True


def _values_in(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def is_web_page(response: RawResponse) -> bool:
    """Return whether the response is a web page."""
    return response.media_type == "text/html" or response.content[:64].lstrip().lower().startswith(
        _PAGE_STARTS
    )


def _describe_misdirection(response: RawResponse, *, of_success: bool = False) -> str | None:
    """Explain a response that does not come from a Tinker server, such as a gateway's. None for any
    other response.
    """
    where = f"{response.request.method} {response.request.shown_url}"
    if is_web_page(response):
        if response.status in GATEWAY_STATUSES:
            return f"{where} returned a web page from a gateway in front of the server"
        return f"{where} returned a web page, so {NO_API}; {_advise(where)}"
    if (
        not of_success
        and response.request.operation in _ENTRIES
        and response.status in ABSENT_STATUSES
    ):
        return f"{where} does not exist, so {NO_API}; {_advise(where)}"
    return None


def _advise(where: str) -> str:
    """Say what to do about a URL that is wrong; the path of OpenAI's API is a common mistake."""
    return f"{'remove /v1 from' if '/v1/api/' in where else 'check'} base_url (TINKER_BASE_URL)"


# The first of these fields with a text. ``error`` is a short code where there is also a message.
_FIELDS = ("detail", "message", "msg", "error")


def find_explanation(body: object) -> str | None:
    """Return the text of a refusal; None if the body has another form.

    >>> find_explanation({"error": {"message": "no such model", "type": "not_found"}})
    'no such model'
    >>> find_explanation(
    ...     {"detail": [{"loc": ["body", "seed"], "msg": "Input should be an integer"}]}
    ... )
    'body.seed: Input should be an integer'
    """
    if not isinstance(body, dict):
        return None
    fields = cast("Mapping[str, object]", body)
    return next(filter(None, (_read_text(fields.get(name)) for name in _FIELDS)), None)


def _read_text(value: object) -> str | None:
    if isinstance(value, list):
        # the faults that a server found in a body, unless one of them has another form
        texts = [_describe_fault(fault) for fault in cast("Sequence[object]", value)]
        return "; ".join(text for text in texts if text) if all(texts) else None
    if isinstance(value, str):
        return value if value.strip() else None
    return find_explanation(value)


def _describe_fault(fault: object) -> str | None:
    """Return a fault with its place, such as ``body.seed: Input should be an integer``."""
    text = _read_text(fault)
    place = cast("Mapping[str, object]", fault).get("loc") if isinstance(fault, dict) else None
    return (
        f"{'.'.join(map(str, cast('list[object]', place)))}: {text}"
        if text and isinstance(place, list) and place
        else text
    )


#: A sample may wait so long for its turn, as one that is not streamed may.
FIRST_TOKEN_SECONDS = SAMPLE.limit(Verdict.COOL_DOWN)


class StreamsAbsent(Exception):
    """The response is not a stream."""


class EventReceiver:
    """The receiver of one stream, to its last event or an invalid one.

    :meth:`check` raises StreamsAbsent when the response is no stream; APIError and
    RequestFailedError as of other requests.
    """

    _prepared: PreparedRequest
    _outcome: Exception | str | None
    _until: float
    _sample_count: int
    _ended: dict[int, bool]  # whether each sample that has begun has ended

    def __init__(self, clock: Clock, admit: Admission, to: TokenQueue) -> None:
        self._clock, self._admit, self._to = clock, admit, to

    @property
    def received(self) -> bool:
        """Return whether there were tokens."""
        return self._to.received_tokens > 0

    def begin(self, prepared: PreparedRequest) -> None:
        """Expect the events of another attempt."""
        self._prepared = prepared
        self._outcome = connection_error(
            prepared, ExchangeFailed("the stream ended before its last event")
        )
        self._until = self._clock.monotonic() + FIRST_TOKEN_SECONDS
        self._sample_count, self._ended = getattr(prepared.record, "num_samples", 1), {}

    async def receive(self, headers: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        """Take the events as they come."""
        self._admit.leave(None)  # the server has the request
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != EVENT_STREAM:
            self._outcome = StreamsAbsent(media_type)
            return
        decoder = EventDecoder()
        async for piece in pieces:
            try:
                if any(self._take(event.data) for event in decoder.feed(piece)) or self._is_late():
                    return
            except (ValueError, msgspec.DecodeError) as error:
                self._outcome = str(error)
                return

    def check(self, response: RawResponse) -> None:
        """Raise what went wrong."""
        if isinstance(self._outcome, str):
            raise invalid_response(response, self._outcome)
        if self._outcome is not None:
            raise self._outcome

    def _take(self, data: str) -> bool:
        """Take one event; return whether it is the last."""
        event = json.decode(data.encode(), models.SampleStreamEvent)
        if event.type == "tokens":
            self._check_tokens(event)
            self._until = self._clock.monotonic() + self._to.silence_seconds
            self._to.put(event)
        elif event.type == "done":
            if len(self._ended) < self._sample_count:
                raise ValueError(
                    f"the stream is done after {len(self._ended)} of {self._sample_count} samples"
                )
            self._outcome = None
        elif event.type == "failed":
            self._outcome = _to_failure(event)
        return event.type in ("done", "failed")

    def _check_tokens(self, event: models.SampleStreamEvent) -> None:
        """Raise ValueError unless these tokens are of a sample that has not ended, with as many
        log-probabilities or none.
        """
        if event.index >= self._sample_count or self._ended.get(event.index):
            raise ValueError(
                f"tokens of sample {event.index}, which has ended or was not asked for"
            )
        if event.logprobs and len(event.logprobs) != len(event.tokens):
            raise ValueError(
                f"{len(event.tokens)} tokens of sample "
                f"{event.index} with {len(event.logprobs)} logprobs"
            )
        self._ended[event.index] = event.stop_reason is not None

    def _is_late(self) -> bool:
        """Return whether the time without tokens is over; the outcome is then a timeout."""
        if self._clock.monotonic() < self._until:
            return False
        self._outcome = connection_error(
            self._prepared,
            ExchangeFailed("the connection is alive, but no tokens arrived", timed_out=True),
        )
        return True


def _to_failure(event: models.SampleStreamEvent) -> TinkerError:
    category = (event.category or "").lower()
    known = category if category in ("user", "server") else "unknown"
    return RequestFailedError(
        f"sample_stream failed: {shorten(event.error or 'the server gave no reason')}", "", known
    )
