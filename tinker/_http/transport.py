"""One generated Request -> one exchange -> its typed value or a typed error; `tried` puts the retries of `_retry` around it."""

from __future__ import annotations

import codecs
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.runtime import Binary, Request

from tinker import errors
from tinker._clock import Clock
from tinker._config import Config
from tinker._http.auth import Auth, Credential
from tinker._http.closing import Closing
from tinker._http.engines import Answer, Call, Exchange, ExchangeFailed, Purpose, readable
from tinker._http.misdirected import described
from tinker._http.observers import Observers
from tinker._http.refused_fields import RefusedFields
from tinker._http.retry import UNAUTHENTICATED_STATUS, UNREADABLE_STATUSES, Attempts, Policy, requested_delay, run
from tinker._wire import compression, json
from tinker._wire.bodies import AT_ONCE, Piece, handed_over
from tinker.observing import RequestAttempt

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

# Somebody without patience waits this long for the answer to one try.
SHORTEST_PATIENCE_SECONDS = 5.0
# Of the body of an error: what is parsed, how deeply it may be nested, how much of it is shown in the message.
_PARSED_NBYTES = 1 << 20
_DEEPEST = 64
_SHOWN_CHARACTERS = 4096
_KEPT_NBYTES = 65536
_KEY_HEADER = "X-API-Key"
_IDEMPOTENCY_HEADER = "X-Idempotency-Key"
_EXPIRED = 'error="invalid_token"'
_MAX_REDIRECTS = 5
_REPEATING_REDIRECTS = frozenset({307, 308})
_GET_REDIRECTS = frozenset({301, 302, 303})
_SECRET_HEADERS = frozenset(
    {"x-api-key", "authorization", "proxy-authorization", "cf-access-client-secret", "x-tinker-weights-access-token"}
)
# An in-process server has no host; httpx wants one.
_LOCAL_ORIGIN = "http://local"


@attrs.frozen
class Transport:
    """Exchanges with one server under one credential."""

    config: Config
    clock: Clock
    auth: Auth
    exchange: Exchange
    observers: Observers
    refused: RefusedFields = attrs.field(factory=RefusedFields)
    _closing: Closing = attrs.field(factory=Closing, init=False)

    async def sleep(self, seconds: float) -> None:
        """Sleep; ClientClosedError as soon as the client is closed."""
        await self._closing.wait(self._asleep(seconds))

    async def _asleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)

    async def close(self) -> None:
        """End what sleeps, and close the connections."""
        self._closing.close()
        await self.exchange.aclose()

    async def send(self, request: Request[T], policy: Policy, purpose: Purpose = Purpose.SESSION) -> T:
        """Make the exchange, retried as ``policy`` and the settings say, and decode its answer."""
        call = self.prepare(request, purpose)

        async def attempt() -> T:
            return self.decode(request, call, await self.perform(call, request.operation))

        return await self.tried(policy, attempt, request.operation)

    async def tried(
        self,
        policy: Policy,
        attempt: Callable[[], Awaitable[T]],
        what: str,
        on_cool_down: Callable[[errors.APIStatusError, float], None] | None = None,
    ) -> T:
        """The outcome of ``attempt``, made again as ``policy`` and the settings say."""
        chosen = attrs.evolve(policy.within(self.config.patience_seconds), fails_fast=self.config.fail_fast)
        return await run(chosen, attempt, self.observers, what=what, on_cool_down=on_cool_down, sleep=self.sleep)

    def attempts(self, policy: Policy, what: str) -> Attempts:
        """The failures of something that was promised, which is waited for also where submissions fail fast."""
        return Attempts(policy.within(self.config.patience_seconds), self.observers, what)

    async def timed(self, request: Request[T], policy: Policy) -> tuple[T, float]:
        """As :meth:`send`, and the seconds that it took."""
        began = self.clock.monotonic()
        return await self.send(request, policy), self.clock.monotonic() - began

    def prepare(self, request: Request[Any], purpose: Purpose, *, compress: bool = False) -> Call:
        """The call of a request, its body encoded; the same call serves every attempt, under one idempotency key.

        ``compress`` sends a body as zstd, where this installation can.
        """
        headers = {"Accept": ", ".join(request.accepts), **self.config.headers, **request.headers}
        if request.method != "GET":
            headers[_IDEMPOTENCY_HEADER] = str(uuid.uuid4())
        body: tuple[Piece, ...] = ()
        record = None if isinstance(request.body, Binary) else request.body
        if isinstance(request.body, Binary):
            body = handed_over(request.body.content)
            headers["Content-Type"] = request.body.media_type
        elif record is not None:
            body = (json.encode(record),)
            headers["Content-Type"] = json.MEDIA_TYPE
        if body and compress and compression.available():
            body, record = compression.compressed(body), None
            headers["Content-Encoding"] = compression.CONTENT_ENCODING
        headers |= _length(body)
        return Call(
            method=request.method,
            url=self._url(request, self._with_defaults(request.query) if self.config.query else request.query),
            headers=headers,
            shown_url=self._url(request, request.query),
            private=self._private,
            body=body,
            record=record,
            purpose=purpose,
            confined=_holds_token(request.body),
            silence_seconds=self._silence_seconds(purpose),
        )

    def _silence_seconds(self, purpose: Purpose) -> float:
        """How long a try waits for a server that says nothing. Servers hold a poll, so patience does not shorten that."""
        patience = self.config.patience_seconds
        if patience is None or purpose is Purpose.POLL:
            return purpose.read_seconds
        return min(purpose.read_seconds, max(SHORTEST_PATIENCE_SECONDS, patience))

    def _url(self, request: Request[Any], query: str) -> str:
        base = _LOCAL_ORIGIN if self.config.is_local else self.config.base_url
        return f"{base}{request.path}?{query}" if query else f"{base}{request.path}"

    @property
    def _private(self) -> frozenset[str]:
        return frozenset(map(str.lower, self.config.headers)) - {"user-agent"}

    def _with_defaults(self, query: str) -> str:
        """The query, and what the settings add to every one, unless it is there already."""
        return urlencode({**self.config.query, **dict(parse_qsl(query, keep_blank_values=True))})

    async def perform(self, call: Call, operation: str) -> Answer:
        """One attempt: the answer when it is a success, else the APIError that it is.

        A token that the server calls invalid is replaced, and the attempt made once more. So it is without fields at their
        default, where the server refuses just those.
        """
        if self.refused:
            call = self._without_refused(call, operation)
        answer = await self._authenticated(call, operation)
        while answer.status in UNREADABLE_STATUSES and call.record is not None:
            if not self.refused.learn(operation, call.record, answer.content):
                break
            call = self._without_refused(call, operation)
            answer = await self._authenticated(call, operation)
        return self._success(call, operation, answer)

    def _without_refused(self, call: Call, operation: str) -> Call:
        """The call without fields that the server refuses; another body has an idempotency key of its own, always the same."""
        record = None if call.record is None else self.refused.without(operation, call.record)
        if record is None or record is call.record:
            return call
        body = (json.encode(record),)
        headers = {name: value for name, value in call.headers.items() if name != "Content-Length"} | _length(body)
        if _IDEMPOTENCY_HEADER in headers:
            headers[_IDEMPOTENCY_HEADER] = str(uuid.uuid5(uuid.NAMESPACE_OID, headers[_IDEMPOTENCY_HEADER]))
        return attrs.evolve(call, headers=headers, body=body, record=record)

    async def _authenticated(self, call: Call, operation: str) -> Answer:
        """The answer under the credential of now, and under a new one where the server calls that invalid."""
        credential = await self.auth.credential()
        answer = await self._answered(call, operation, credential)
        if _is_expired(answer) and await self.auth.replaced(credential):
            answer = await self._answered(call, operation, await self.auth.credential())
        return answer

    async def perform_with(self, call: Call, operation: str, credential: Credential) -> Answer:
        """One attempt under this very credential: for the exchange that replaces it."""
        return self._success(call, operation, await self._answered(call, operation, credential))

    def _success(self, call: Call, operation: str, answer: Answer) -> Answer:
        if 200 <= answer.status < 300:
            return answer
        error = status_error(call, answer, operation)
        error.retry_after = requested_delay(answer.headers, self.clock)
        if call.confined and answer.status in _REPEATING_REDIRECTS:
            error.add_note("The request has an access token in its body, so it is not sent to another server.")
        raise _noted(error, operation)

    async def _answered(self, call: Call, operation: str, credential: Credential | None) -> Answer:
        if credential is not None and _KEY_HEADER not in self.config.headers:
            call = attrs.evolve(call, headers={**call.headers, _KEY_HEADER: credential.secret})
        return await (self._observed(call, operation) if self.observers else self._exchanged(call, operation))

    async def _exchanged(self, call: Call, operation: str) -> Answer:
        try:
            return await self._following_redirects(call)
        except ExchangeFailed as failure:
            raise _noted(connection_error(call, failure), operation) from failure

    async def _observed(self, call: Call, operation: str) -> Answer:
        started = self.clock.monotonic()
        answer: Answer | None = None
        error: errors.APIError | None = None
        try:
            answer = await self._exchanged(call, operation)
            if answer.status >= 400:
                error = _noted(status_error(call, answer, operation), operation)
            return answer
        except errors.APIError as failure:
            error = failure
            raise
        finally:
            self.observers.tell(
                RequestAttempt(
                    operation=operation,
                    started=started,
                    seconds=self.clock.monotonic() - started,
                    sent_nbytes=call.nbytes,
                    status=None if answer is None else answer.status,
                    received_nbytes=0 if answer is None else len(answer.content),
                    error=error,
                )
            )

    async def _following_redirects(self, call: Call) -> Answer:
        """Redirects to another origin lose every credential."""
        answer = await self.exchange(call)
        for _ in range(_MAX_REDIRECTS):
            location = answer.headers.get("location")
            follows = _REPEATING_REDIRECTS | _GET_REDIRECTS if call.method == "GET" else _REPEATING_REDIRECTS
            if location is None or answer.status not in follows or not call.follows_redirects:
                return answer
            redirected = _redirected(call, location)
            if redirected is None:
                return answer
            call = redirected
            answer = await self.exchange(call)
        return answer

    def decode(self, request: Request[T], call: Call, answer: Answer) -> T:
        """The typed value of a JSON answer; None where the operation has no content."""
        if request.reply is None:
            return cast("T", None)
        return decode_json(answer, request.reply, call, request.operation)


def decode_json(answer: Answer, kind: type[T], call: Call, operation: str) -> T:
    """A JSON answer as ``kind``; APIResponseValidationError saying what does not fit."""
    try:
        return json.decode(answer.content, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _noted(invalid_answer(call, answer, f"{operation}: {error}"), operation) from error


def _length(body: Sequence[Piece]) -> dict[str, str]:
    """The header of a body that is handed over in pieces."""
    return {"Content-Length": str(sum(map(len, body)))} if len(body) > 1 or (body and len(body[0]) > AT_ONCE) else {}


def _holds_token(body: object) -> bool:
    return isinstance(body, models.LoadWeightsRequest) and body.weights_access_token is not None


def _is_expired(answer: Answer) -> bool:
    return answer.status == UNAUTHENTICATED_STATUS and _EXPIRED in answer.headers.get("www-authenticate", "")


def _noted(error: errors.APIError, operation: str) -> errors.APIError:
    error.operation = operation
    return error


def _redirected(call: Call, location: str) -> Call | None:
    """The call to the new address; None where it must not go there. ExchangeFailed for an address that is none."""
    try:
        url = urljoin(call.url, location)
        here, there = urlsplit(call.url), urlsplit(url)
    except ValueError as error:
        raise ExchangeFailed(f"redirected to an address that cannot be used: {error}") from error
    if (here.scheme, here.netloc) == (there.scheme, there.netloc):
        return attrs.evolve(call, url=url)
    return None if call.confined else attrs.evolve(call, url=url, headers=_without_secrets(call))


def _without_secrets(call: Call) -> dict[str, str]:
    secret = _SECRET_HEADERS | call.private
    return {name: value for name, value in call.headers.items() if name.lower() not in secret}


def _shown_request(call: Call) -> httpx.Request:
    """The request as errors show it: no body, no credentials."""
    import httpx

    headers = {name: value for name, value in _without_secrets(call).items() if name != "Content-Length"}
    return httpx.Request(call.method, call.shown_url, headers=headers)


def _shown_response(call: Call, answer: Answer) -> httpx.Response:
    import httpx

    hidden = {"content-encoding", "content-length", "transfer-encoding", "set-cookie"}
    headers = [(_raw(name), _raw(value)) for name, value in answer.headers.items() if name.lower() not in hidden]
    return httpx.Response(answer.status, headers=headers, content=answer.content[:_KEPT_NBYTES], request=_shown_request(call))


def _raw(text: str) -> bytes:
    """The bytes of a name or value in a header, which are not text in any known encoding."""
    return text.encode("utf-8", "surrogateescape")


def connection_error(call: Call, failure: ExchangeFailed) -> errors.APIConnectionError:
    """The error of an exchange that brought no answer."""
    where = f"{call.method} {call.shown_url}"
    if failure.timed_out:
        return errors.APITimeoutError(_shown_request(call), f"Request timed out: {where}: {failure}.")
    error = errors.APIConnectionError(message=f"Connection error: {where}: {failure}.", request=_shown_request(call))
    error.never_connected = failure.never_connected
    return error


def status_error(call: Call, answer: Answer, operation: str = "") -> errors.APIStatusError:
    """The error of an answer with an error status."""
    body = parsed_body(answer)
    said = described(call, answer, operation) or body
    text = f"Error code: {answer.status} - {_shortened(str(said))}" if said else f"Error code: {answer.status}"
    kind = errors.status_error_type(answer.status)
    return kind(text, response=_shown_response(call, answer), body=body)


def invalid_answer(call: Call, answer: Answer, message: str) -> errors.APIResponseValidationError:
    """The error of a success that does not fit the contract."""
    fault = described(call, answer, "") or message
    return errors.APIResponseValidationError(
        _shown_response(call, answer), parsed_body(answer), message=f"The server's answer does not fit: {_shortened(fault)}"
    )


def _shortened(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return readable(text)
    return f"{readable(text[:_SHOWN_CHARACTERS])}... ({len(text)} characters in all)"


def parsed_body(answer: Answer) -> object:
    """The JSON of an answer, else the beginning of its text (None when empty, or when it is not text)."""
    if not answer.content:
        return None
    if len(answer.content) <= _PARSED_NBYTES:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            value: object = msgspec.json.decode(answer.content)
            if not _is_deep(value):
                return value
    return _beginning(answer.content)


def _beginning(content: bytes) -> str | None:
    """Text up to the length that is shown; a character that is cut in the middle is left out."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content[:_SHOWN_CHARACTERS])
    except UnicodeDecodeError:
        return None


def _is_deep(value: object) -> bool:
    """Whether a value is nested so deeply that showing or pickling it may fail."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return False
    return True


def _within(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()
