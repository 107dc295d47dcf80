"""The one path of every exchange with the server: encode, retry, limit, authenticate, follow redirects, decode.

`send` makes a request and tries it again as its policy says. Polls, which have their own idea of what a failure is, make single
attempts by `send_once`.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.runtime import Binary, Request

from tinker import errors
from tinker._clock import Clock
from tinker._config import Config
from tinker._futures import PRESENT, Reachability
from tinker._http.auth import Auth, Credential
from tinker._http.circuits import Circuits
from tinker._http.exchange_log import send_logged
from tinker._http.findings import Findings
from tinker._http.headers import Headers, SharedHeaders
from tinker._http.limits import Admission
from tinker._http.messages import ExchangeFailed, HTTPEngine, PreparedRequest, Purpose, RawResponse
from tinker._http.observers import Observers
from tinker._http.refused_fields import RefusedFields
from tinker._http.responses import connection_error, decode_json, headers_without_secrets, invalid_response, status_error
from tinker._http.retry import Attempts, Policy, delay_before, read_requested_delay
from tinker._http.statuses import UNAUTHENTICATED_STATUS, UNSUPPORTED_FORMAT_STATUSES, Verdict, is_absent, is_success, judge
from tinker._loop import TaskScope
from tinker._wire import INLINE_NBYTES, Piece, as_pieces, compression, count_nbytes, json
from tinker.observing import AttemptStarted, ExchangeSink, RequestAttempt, ServerInfo, exchange_sinks

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Somebody without patience waits this long for the response to one try.
SHORTEST_PATIENCE_SECONDS = 5.0
_KEY_HEADER = "X-API-Key"
_IDEMPOTENCY_HEADER = "X-Idempotency-Key"
_EXPIRED = 'error="invalid_token"'
_MAX_REDIRECTS = 5
_REPEATING_REDIRECTS = frozenset({307, 308})
_GET_REDIRECTS = frozenset({301, 302, 303})
# An in-process server has no host; httpx wants one.
_LOCAL_ORIGIN = "http://local"
# More than a client has at a time; those of credentials and forms that are not used any more are dropped.
_MAX_SHARED_HEADERS = 64


class Reply(msgspec.Struct, Generic[T], frozen=True):
    """The decoded response to a request, the seconds it took, and whether no attempt before it failed."""

    value: T
    elapsed_seconds: float
    is_of_first_attempt: bool


class Variants(Protocol[T_co]):
    """A request that can be written in several forms, of which the server may read only some."""

    @property
    def operation(self) -> str:
        """Return the operation that the log names."""
        ...

    @property
    def reply(self) -> type[T_co]:
        """Return the value of the response, whatever the form of the request."""
        ...

    async def first(self) -> PreparedRequest:
        """Return the form to begin an attempt with."""
        ...

    async def next_after(self, error: errors.APIStatusError) -> PreparedRequest:
        """Return another form for the same attempt; raises the error that says most when there is none."""
        ...

    def accept(self) -> None:
        """Note that the server took the last form."""
        ...


class StreamReceiver(Protocol):
    """Takes the responses to the attempts at a stream."""

    @property
    def received(self) -> bool:
        """Return whether something of the stream was handed over, which no other attempt can take back."""
        ...

    def begin(self, prepared: PreparedRequest) -> None:
        """Expect the response to another attempt."""
        ...

    async def receive(self, headers: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        """Take the response as it comes."""
        ...

    def check(self, response: RawResponse) -> None:
        """Raise what was wrong with the response, once it is over."""
        ...


def _always() -> bool:
    return True


class _Call(msgspec.Struct, frozen=True):
    """What is repeated: what it is for, how long, and what each attempt needs."""

    operation: str
    purpose: Purpose
    policy: Policy
    admit: Admission | None = None
    may_repeat: Callable[[], bool] = _always


@attrs.frozen
class Transport:
    """Exchanges with one server under one credential."""

    config: Config
    clock: Clock
    auth: Auth
    engine: HTTPEngine
    observers: Observers
    tasks: TaskScope
    circuits: Circuits | None = None
    refused: RefusedFields = attrs.field(factory=RefusedFields)
    findings: Findings = attrs.field(factory=Findings)
    reachability: Reachability = attrs.field(factory=Reachability)
    dump: ExchangeSink | None = None
    _secret_headers: frozenset[str] = attrs.field(
        default=attrs.Factory(lambda self: frozenset(map(str.lower, self.config.headers)) - {"user-agent"}, takes_self=True),
        init=False,
    )
    _origin: str = attrs.field(
        default=attrs.Factory(lambda self: _LOCAL_ORIGIN if self.config.is_local else self.config.base_url, takes_self=True),
        init=False,
    )
    _silences: dict[Purpose, float] = attrs.field(
        default=attrs.Factory(lambda self: {one: _silence_seconds(self.config, one) for one in Purpose}, takes_self=True),
        init=False,
    )
    _shared_headers: dict[tuple[str, str | None, str | None], SharedHeaders] = attrs.field(
        factory=lambda: dict[tuple[str, str | None, str | None], SharedHeaders](), init=False, repr=False
    )
    _key_prefix: str = attrs.field(factory=lambda: str(uuid.uuid4())[:24], init=False)
    _key_numbers: itertools.count[int] = attrs.field(factory=itertools.count, init=False)

    def describe_server(self) -> ServerInfo:
        """Return what was found out about the server."""
        return ServerInfo(base_url=self.config.base_url, sdk_version=self.config.sdk_version, facts=self.findings.facts)

    async def sleep(self, seconds: float) -> None:
        """Sleep; ClientClosedError as soon as the client is closed."""
        async with self.tasks.while_open():
            await self.clock.sleep(seconds)

    async def close(self) -> None:
        """End the client's tasks and sleeps, and close the connections."""
        self.tasks.close()
        await self.engine.aclose()

    # ------------------------------------------------------------------------------------------------------------- sending

    def send(
        self,
        request: Request[T],
        policy: Policy,
        *,
        purpose: Purpose = Purpose.SESSION,
        admit: Admission | None = None,
        credential: Credential | None = None,
        check: Callable[[T], str | None] | None = None,
        follow_redirects: bool = True,
    ) -> Coroutine[Any, Any, Reply[T]]:
        """Send a request, again as ``policy`` and the settings say, and decode its response.

        ``admit`` is what each attempt needs. ``credential`` takes the place of the client's own, and hides the response in
        errors. ``check`` says what is wrong with a response that decodes and is nevertheless of no use.
        """
        prepared = self.prepare(request, purpose, credential=credential, follow_redirects=follow_redirects)
        return self._repeat(
            _Call(request.operation, purpose, policy, admit),
            lambda: self.send_once(prepared),
            lambda response: _decode(response, request.reply, check),
        )

    async def send_optional(self, request: Request[T], policy: Policy, purpose: Purpose = Purpose.SESSION) -> T | None:
        """Send as :meth:`send` does, to an endpoint that not every server has: None where it is absent."""
        try:
            return (await self.send(request, policy, purpose=purpose)).value
        except errors.APIStatusError as error:
            if is_absent(error):
                self.findings.note_absence(request.operation, error)
                return None
            raise

    def send_variants(self, variants: Variants[T], policy: Policy) -> Coroutine[Any, Any, Reply[T]]:
        """Send as :meth:`send` does, a request that can be written in several forms; an attempt may take several of them."""

        def read(response: RawResponse) -> T:
            value = decode_json(response, variants.reply)
            variants.accept()
            return value

        call = _Call(variants.operation, Purpose.UPLOAD, policy)
        return self._repeat(call, lambda: self._send_first_accepted(variants), read)

    def send_stream(
        self, request: Request[Any], policy: Policy, receiver: StreamReceiver, admit: Admission
    ) -> Coroutine[Any, Any, Reply[None]]:
        """Send a request whose response is a stream, as :meth:`send` does; again only until its receiver has something."""
        prepared = self.prepare(request, Purpose.STREAM)
        # Nothing may hold events back to pack them.
        headers = prepared.header_parts
        headers = Headers(headers.shared, {**headers.own, "Accept-Encoding": "identity"})
        prepared = msgspec.structs.replace(prepared, headers=headers, receive=receiver.receive)

        def attempt() -> Awaitable[RawResponse]:
            receiver.begin(prepared)
            return self.send_once(prepared)

        call = _Call(request.operation, Purpose.STREAM, policy, admit, lambda: not receiver.received)
        return self._repeat(call, attempt, receiver.check)

    async def _repeat(
        self, call: _Call, attempt: Callable[[], Awaitable[RawResponse]], read: Callable[[RawResponse], T]
    ) -> Reply[T]:
        """Make attempts until the response of one can be read, as the policy, the settings and the circuit of the call say."""
        guard = None if self.circuits is None else self.circuits.guard(call.operation, call.purpose, call.policy, call.admit)
        held = guard or call.admit
        failures: Attempts | None = None
        began = self.clock.monotonic()
        while True:
            try:
                if held is None:
                    value = read(await attempt())
                else:
                    if not held.try_enter():
                        await held.enter()
                    try:
                        value = read(await attempt())
                    except BaseException as error:
                        held.leave(error)
                        raise
                    held.leave(None)
                return Reply(value, self.clock.monotonic() - began, failures is None)
            except errors.APIError as error:
                if not call.may_repeat():
                    raise
                failures = failures or self._submission_attempts(call, began)
                delay = self._next_delay(failures, error, call.admit)
            await (self.sleep(delay) if guard is None else guard.sleep(self.sleep, delay))

    async def _send_first_accepted(self, variants: Variants[T]) -> RawResponse:
        prepared = await variants.first()
        while True:
            try:
                return await self.send_once(prepared)
            except errors.APIStatusError as error:
                prepared = await variants.next_after(error)

    def attempts(self, policy: Policy, operation: str, began: float | None = None) -> Attempts:
        """Count the failures, since a time, of something promised, which is waited for also where submissions fail fast."""
        return Attempts(self._limit(policy), self.observers, operation, began)

    def _limit(self, policy: Policy) -> Policy:
        patience = self.config.patience_seconds
        return msgspec.structs.replace(
            policy.within(patience),
            max_retries=self.config.max_retries,
            wrong_address_seconds_total=policy.wrong_address_seconds_total if patience is None else patience,
        )

    def _submission_attempts(self, call: _Call, began: float) -> Attempts:
        """Count the failures of something that is submitted, since a time."""
        chosen = self._limit(call.policy)
        if self.config.fail_fast:
            chosen = msgspec.structs.replace(chosen, fails_fast=True)
        return Attempts(chosen, self.observers, call.operation, began)

    def _next_delay(self, attempts: Attempts, error: errors.APIError, admit: Admission | None) -> float:
        """Return the seconds until the next attempt, and note what the server asks of all; without one raises the error."""
        if admit is not None and isinstance(error, errors.APIStatusError) and judge(error) is Verdict.COOL_DOWN:
            admit.note_cool_down(error, delay_before(attempts.policy, error, attempts.count, self.clock))
        return attempts.next_delay(error)

    async def send_once(self, prepared: PreparedRequest) -> RawResponse:
        """Make one attempt: the response when it is a success, else the APIError that it is.

        A token that the server calls invalid is replaced, and the attempt made once more. So it is without fields at their
        default, where the server refuses just those.
        """
        if self.refused:
            prepared = self._without_refused(prepared)
        may_replace = not prepared.has_own_credential
        while True:
            credential = None
            if not prepared.has_own_credential:
                credential = self.auth.key or await self.auth.credential()
                prepared = self._under(credential, prepared)
            response = await self._send_following_redirects(prepared)
            if is_success(response.status):
                return response
            if may_replace and _is_expired(response) and await self.auth.replace(credential):
                may_replace = False
                continue
            prepared = self._without_new_refused(prepared, response)

    async def _send_following_redirects(self, prepared: PreparedRequest) -> RawResponse:
        """Send, and tell the observers; a redirect to another origin loses every credential."""
        attempt = _ObservedAttempt(self, prepared) if self.observers else None
        request = prepared
        try:
            response = await self._exchange(request)
            for _ in range(_MAX_REDIRECTS):
                if response.status < 300 or (redirected := _follow_redirect(request, response)) is None:
                    break
                request = redirected
                response = await self._exchange(request)
        except ExchangeFailed as failure:
            self.reachability.failure = str(failure)
            failure.wrong_address &= not self.reachability.has_answered
            error = connection_error(prepared, failure)
            if attempt is not None:
                attempt.end(None, error)
            raise error from failure
        except BaseException:
            if attempt is not None:
                attempt.end(None, None)
            raise
        self.reachability.failure, self.reachability.has_answered = None, True
        if attempt is not None:
            attempt.end(response, status_error(response) if response.status >= 400 else None)
        return response

    def _exchange(self, request: PreparedRequest) -> Awaitable[RawResponse]:
        sinks = exchange_sinks() if self.dump is None else (*exchange_sinks(), self.dump)
        return send_logged(self.engine, request, self.clock, sinks) if sinks else self.engine.send(request)

    def _failure(self, prepared: PreparedRequest, response: RawResponse) -> errors.APIStatusError:
        error = status_error(response)
        error.retry_after = read_requested_delay(response.headers, self.clock)
        if prepared.confined and response.status in _REPEATING_REDIRECTS:
            error.add_note("The request has an access token in its body, so it is not sent to another server.")
        return error

    # ----------------------------------------------------------------------------------------------------------- preparing

    def prepare(
        self,
        request: Request[Any],
        purpose: Purpose,
        *,
        compress: bool = False,
        credential: Credential | None = None,
        follow_redirects: bool = True,
    ) -> PreparedRequest:
        """Encode a request; the same prepared request serves every attempt, under one idempotency key.

        ``compress`` sends a body as zstd, where this installation can.
        """
        own = {**request.headers}
        if (present := PRESENT.get()) is not None and present.trace_headers is not None:
            own |= present.trace_headers
        if request.method != "GET":
            own[_IDEMPOTENCY_HEADER] = f"{self._key_prefix}{next(self._key_numbers):012x}"
        media_type: str | None = None
        body: Sequence[Piece] = ()
        record = None if isinstance(request.body, Binary) else request.body
        if isinstance(request.body, Binary):
            body = as_pieces(request.body.content)
            media_type = request.body.media_type
        elif record is not None:
            body = (json.encode(record),)
            media_type = json.MEDIA_TYPE
        if body and compress and compression.available():
            body, record = compression.compress(body), None
            own["Content-Encoding"] = compression.CONTENT_ENCODING
        _add_length(own, body)
        shared = self._share_headers(", ".join(request.accepts), media_type, credential or self.auth.key)
        address = self._url(request, request.query)
        return PreparedRequest(
            method=request.method,
            operation=request.operation,
            url=self._url(request, self._with_defaults(request.query)) if self.config.query else address,
            headers=Headers(shared, own),
            redacted_url=address,
            secret_headers=self._secret_headers,
            body=body,
            record=record,
            purpose=purpose,
            follows_redirects=follow_redirects,
            confined=_holds_token(request.body),
            silence_seconds=self._silences[purpose],
            has_own_credential=credential is not None,
        )

    def _share_headers(self, accept: str, media_type: str | None, credential: Credential | None) -> SharedHeaders:
        """Return the headers of every request that accepts and sends the same under a credential: always the same object.

        The credential is not in them if the user's own headers hold one.
        """
        key = (accept, media_type, None if credential is None else credential.secret)
        if (known := self._shared_headers.get(key)) is not None:
            return known
        headers = {"Accept": accept, **self.config.headers}
        if media_type is not None:
            headers["Content-Type"] = media_type
        if credential is not None and _KEY_HEADER not in headers:
            headers[_KEY_HEADER] = credential.secret
        if len(self._shared_headers) >= _MAX_SHARED_HEADERS:
            self._shared_headers.clear()
        shared = self._shared_headers[key] = SharedHeaders(headers, credential)
        return shared

    def _url(self, request: Request[Any], query: str) -> str:
        return f"{self._origin}{request.path}?{query}" if query else self._origin + request.path

    def _with_defaults(self, query: str) -> str:
        """Return the query, and what the settings add to every one, unless it is there already."""
        return urlencode({**self.config.query, **dict(parse_qsl(query, keep_blank_values=True))})

    def _under(self, credential: Credential | None, prepared: PreparedRequest) -> PreparedRequest:
        """Return the request with the credential of now, which may be another one than when it was prepared."""
        headers = prepared.header_parts
        if headers.shared.credential is credential:
            return prepared
        shared = self._share_headers(headers["Accept"], headers.get("Content-Type"), credential)
        return msgspec.structs.replace(prepared, headers=Headers(shared, headers.own))

    def _without_new_refused(self, prepared: PreparedRequest, response: RawResponse) -> PreparedRequest:
        """Return the request without the fields that it was refused for; raises any other failure that the response is."""
        if response.status not in UNSUPPORTED_FORMAT_STATUSES or prepared.record is None:
            raise self._failure(prepared, response)
        if not self.refused.learn(prepared.operation, prepared.record, response.content):
            raise self._failure(prepared, response)
        left_out = ", ".join(self.refused.names(prepared.operation))
        self.findings.note("fields", prepared.operation, f"{left_out} left out", str(response.status))
        return self._without_refused(prepared)

    def _without_refused(self, prepared: PreparedRequest) -> PreparedRequest:
        """Leave out fields that the server refuses; another body has an idempotency key of its own, always the same."""
        record = None if prepared.record is None else self.refused.without(prepared.operation, prepared.record)
        if record is None or record is prepared.record:
            return prepared
        body = (json.encode(record),)
        headers = prepared.header_parts
        own = {name: value for name, value in headers.own.items() if name != "Content-Length"}
        _add_length(own, body)
        if _IDEMPOTENCY_HEADER in own:
            own[_IDEMPOTENCY_HEADER] = str(uuid.uuid5(uuid.NAMESPACE_OID, own[_IDEMPOTENCY_HEADER]))
        return msgspec.structs.replace(prepared, headers=Headers(headers.shared, own), body=body, record=record)


class _ObservedAttempt:
    """One attempt, as observers hear of it."""

    def __init__(self, transport: Transport, prepared: PreparedRequest) -> None:
        self._transport, self._prepared = transport, prepared
        self._started = transport.clock.monotonic()
        event = AttemptStarted(operation=prepared.operation, started=self._started, sent_nbytes=prepared.nbytes)
        transport.observers.notify(event)

    def end(self, response: RawResponse | None, error: errors.APIError | None) -> None:
        """Tell the observers how it ended."""
        self._transport.observers.notify(
            RequestAttempt(
                operation=self._prepared.operation,
                started=self._started,
                seconds=self._transport.clock.monotonic() - self._started,
                sent_nbytes=self._prepared.nbytes,
                status=None if response is None else response.status,
                received_nbytes=0 if response is None else len(response.content),
                error=error,
            )
        )


def _decode(response: RawResponse, kind: type[T] | None, check: Callable[[T], str | None] | None) -> T:
    """Return the typed value of a JSON response; bytes where it is none, None where the operation has no content."""
    if kind is None or kind is bytes:
        return cast("T", None if kind is None else response.content)
    value = decode_json(response, kind)
    if check is not None and (fault := check(value)) is not None:
        raise invalid_response(response, fault)
    return value


def _silence_seconds(config: Config, purpose: Purpose) -> float:
    """Return how long a try waits for a silent server. Servers hold polls and streams, whatever the patience."""
    patience, silence = config.patience_seconds, config.silence_seconds
    if purpose in (Purpose.POLL, Purpose.STREAM):
        return purpose.read_seconds if silence is None else max(purpose.read_seconds, silence)
    longest = purpose.read_seconds if silence is None else silence
    return longest if patience is None else min(longest, max(SHORTEST_PATIENCE_SECONDS, patience))


def _add_length(headers: dict[str, str], body: Sequence[Piece]) -> None:
    """Add the header of a body that is handed over in pieces."""
    if len(body) > 1 or (body and len(body[0]) > INLINE_NBYTES):
        headers["Content-Length"] = str(count_nbytes(body))


def _holds_token(body: object) -> bool:
    return isinstance(body, models.LoadWeightsRequest) and body.weights_access_token is not None


def _is_expired(response: RawResponse) -> bool:
    return response.status == UNAUTHENTICATED_STATUS and _EXPIRED in response.headers.get("www-authenticate", "")


def _follow_redirect(request: PreparedRequest, response: RawResponse) -> PreparedRequest | None:
    """Return the request to the address that a response names; None where it is none or must not be followed.

    ExchangeFailed for an address that cannot be used.
    """
    if not request.follows_redirects or (location := response.headers.get("location")) is None:
        return None
    followed = _REPEATING_REDIRECTS | _GET_REDIRECTS if request.method == "GET" else _REPEATING_REDIRECTS
    if response.status not in followed:
        return None
    try:
        url = urljoin(request.url, location)
        here, there = urlsplit(request.url), urlsplit(url)
    except ValueError as error:
        raise ExchangeFailed(f"redirected to an address that cannot be used: {error}") from error
    if (here.scheme, here.netloc) == (there.scheme, there.netloc):
        return msgspec.structs.replace(request, url=url)
    return None if request.confined else msgspec.structs.replace(request, url=url, headers=headers_without_secrets(request))
