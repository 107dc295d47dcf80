"""The one path of every exchange with the server: encode, limit, authenticate, decode."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import attrs
import msgspec
from tinker_wire.runtime import Binary, Request

from tinker import _wire, errors
from tinker._basics.config import Config
from tinker._basics.events import AttemptStarted, RequestAttempt, ServerInfo
from tinker._futures import CURRENT_OPERATION, Reachability, TokenQueue
from tinker._http import messages
from tinker._http.auth import Auth, Credential
from tinker._http.limits import Admission, GuardedAdmission, open_slots
from tinker._http.messages import (
    ExchangeFailed,
    Headers,
    HTTPEngine,
    PreparedRequest,
    Purpose,
    RawResponse,
    SharedHeaders,
)
from tinker._http.observers import RECORDERS, Observers, Recorder, send_recorded
from tinker._http.responses import (
    EventReceiver,
    connection_error,
    decode_json,
    headers_without_secrets,
    invalid_response,
    status_error,
)
from tinker._http.retry import ONE_SHOT, SUBMIT, Policy, RetrySettings, is_absent, is_success
from tinker._http.submission import (
    Attempts,
    Fail,
    Findings,
    FormAttempt,
    Next,
    Numbering,
    Pause,
    Refresh,
    RefusedFields,
    Retries,
    Submission,
    Variant,
    Wait,
)
from tinker._loop import Clock, TaskScope
from tinker._wire import INLINE_NBYTES, Piece, as_pieces, json

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("tinker")


def open_engine(
    config: Config, observers: Observers, transport: httpx.AsyncBaseTransport | None = None
) -> HTTPEngine:
    """Choose the engine for these settings; makes no connection yet. Call this anywhere, use the
    engine on the loop only.
    """
    slots = None
    if transport is None and not config.is_local:
        try:
            from tinker._http.engine_http import HttpEngine
        except ImportError as error:
            if not (error.name or "").startswith("httpunk"):
                raise
            _warn_of_fallback(str(error))
            transport, slots = _open_transport(config), open_slots(config.connections)
        else:
            return HttpEngine(
                config.proxies,
                connections=config.connections,
                proxy_headers=config.proxy_headers,
                trust=config.trust,
            )
    from tinker._http.engine_httpx import HttpxEngine

    return HttpxEngine(transport or _local_transport(config), observers, slots)


@cache
def _warn_of_fallback(reason: str) -> None:
    logger.warning(
        "httpunk cannot be imported here (%s), so httpx sends the requests: "
        "over HTTP/1.1, and more slowly",
        reason,
    )


def _open_transport(config: Config) -> httpx.AsyncBaseTransport:
    """Return httpx's own connections, with the proxies and certificates of these settings."""
    from tinker._http.engine_httpx import ProxiedTransport

    return ProxiedTransport(config.proxies, config.proxy_headers, config.trust.context("http/1.1"))


@attrs.frozen(kw_only=True)
class OlderArguments:
    """``timeout``, ``max_retries``, ``default_headers`` and ``http_client``, in the words of this
    client.
    """

    silence_seconds: float | None = None
    max_retries: int | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    transport: httpx.AsyncBaseTransport | None = None

    def merge_headers(self, newer: Mapping[str, str] | None) -> dict[str, str]:
        """Return these headers and the newer ones, which win, in whatever case their names are."""
        named = {name.lower() for name in newer or ()}
        return {
            **{name: value for name, value in self.headers.items() if name.lower() not in named},
            **(newer or {}),
        }


def wrap_client(client: object) -> httpx.AsyncBaseTransport | None:
    """Return a transport that sends through the user's client; None for None. Raises TypeError for
    anything else.
    """
    if client is None:
        return None
    from tinker._http import engine_httpx

    return engine_httpx.wrap_client(client)


def _local_transport(config: Config) -> httpx.AsyncBaseTransport:
    """Return the server of this process. It is imported by name, so that the client does not depend
    on it.
    """
    from tinker._http.engine_httpx import InProcessTransport

    local = importlib.import_module("tinker.local")
    return InProcessTransport(local.in_process_app(config.base_url, data_dir=config.local_dir))


@contextlib.asynccontextmanager
async def open_files(engine: HTTPEngine, config: Config) -> AsyncGenerator[httpx.AsyncClient]:
    """Open a client for files behind signed URLs: it has no credentials and follows redirects."""
    from tinker._http.engine_httpx import HttpxEngine, open_files_client

    if isinstance(engine, HttpxEngine):
        yield open_files_client(engine.transport)  # not to be closed
        return
    async with open_files_client(_open_transport(config)) as client:
        yield client


T = TypeVar("T")

# The least time to wait for the response to one attempt, where `patience_seconds` is small.
SHORTEST_PATIENCE_SECONDS = 5.0
_KEY_HEADER = "X-API-Key"
_IDEMPOTENCY_HEADER = "X-Idempotency-Key"
_MAX_REDIRECTS = 5
_REPEATING_REDIRECTS = frozenset({307, 308})
_GET_REDIRECTS = frozenset({301, 302, 303})
# An in-process server has no host; httpx wants one.
_LOCAL_ORIGIN = "http://local"
# More than a client has at a time; those of credentials and forms that are not used any more are
# dropped.
_MAX_SHARED_HEADERS = 64


_FIRST = Variant()


class Reply(msgspec.Struct, Generic[T], frozen=True):
    """The decoded response to a request, the seconds it took, and whether the request was sent once
    only.
    """

    value: T
    elapsed_seconds: float
    was_sent_once: bool


class RequestBody(Protocol):
    """A request that is written for each number, and in each form."""

    async def write(self, variant: Variant) -> PreparedRequest:
        """Return the request as a step sends it."""
        ...


class _Call(msgspec.Struct, Generic[T]):
    """One submission on its way, until the server has the request or it is abandoned.

    ``prepared`` has the request as each step sends it, and ``body`` writes those that are missing.
    """

    transport: Transport
    submission: Submission
    read: Callable[[RawResponse], T]
    prepared: dict[Variant, PreparedRequest]
    sent: Variant = _FIRST
    body: RequestBody | None = None
    held: Admission | None = None
    guard: GuardedAdmission | None = None  # is held, where there is one
    receiver: EventReceiver | None = None
    is_admitted: bool = False
    exchanges: int = 0
    credential: Credential | None = None  # of the last exchange
    record: msgspec.Struct | None = None  # of its body

    @property
    def operation(self) -> str:
        return self.submission.operation

    async def enter(self) -> None:
        """Wait for what an attempt holds, unless it has that."""
        if self.held is not None and not self.is_admitted:
            await self.held.enter()
            self.is_admitted = True

    def leave(self, error: BaseException | None, pause_seconds: float | None = None) -> None:
        """Release the attempt's admission."""
        if self.held is not None and self.is_admitted:
            self.is_admitted = False
            self.held.leave(error, pause_seconds)

    async def attempt(self, step: Next) -> Reply[T]:
        """Write the request as the step says, and send it with the current credential."""
        try:
            if isinstance(step, Refresh):
                await self.transport.auth.replace(self.credential)
                step = step.then
            self.sent = step if isinstance(step, Variant) else self.submission.send()
            self.record = None
            prepared = self.prepared.get(self.sent)
            if prepared is None:
                assert self.body is not None
                prepared = self.prepared[self.sent] = await self.body.write(self.sent)
            value = self.read(await self.transport.make_exchange(self, prepared))
        except BaseException as error:
            if not isinstance(error, Exception):
                self.leave(error)
            raise
        self.leave(None)
        self.submission.accept()
        seconds = self.transport.clock.monotonic() - self.submission.began
        return Reply(value, seconds, self.exchanges == 1)

    async def fail(self, error: Exception) -> Next:
        submission, transport = self.submission, self.transport
        submission.may_refresh = self.credential is not None and transport.auth.can_replace
        submission.can_repeat = self.receiver is None or not self.receiver.received
        step = submission.fail(error, self.sent, self.record, transport.clock.monotonic())
        if isinstance(step, Wait | Fail):
            self.leave(error, step.pause_seconds)
        return step


class Gate(Protocol):
    """What may refuse the requests of clients, such as a circuit breaker."""

    def guard(
        self, transport: Transport, prepared: PreparedRequest, admit: Admission | None
    ) -> GuardedAdmission:
        """Return what each attempt of a request holds, ``admit`` included."""
        ...


class Transport:
    """Exchanges with one server under one credential."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        auth: Auth,
        engine: HTTPEngine,
        observers: Observers,
        tasks: TaskScope,
        gate: Gate | None = None,
        dump: Recorder | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.auth = auth
        self.engine = engine
        self.observers = observers
        self.tasks = tasks
        self.findings: Findings = Findings()
        self.reachability: Reachability = Reachability()
        self._gate = gate
        self._dump = dump
        self._refused = RefusedFields(self.findings)
        self._retry_settings = RetrySettings(
            patience_seconds=config.patience_seconds,
            max_retries=config.max_retries,
            fails_fast=config.fail_fast,
        )
        self._secret_headers = frozenset(map(str.lower, config.headers)) - {"user-agent"}
        self._origin = _LOCAL_ORIGIN if config.is_local else config.base_url
        self._silences = {purpose: _silence_seconds(config, purpose) for purpose in Purpose}
        self._shared_headers: dict[tuple[str, str | None, str | None], SharedHeaders] = {}
        self._key_prefix = str(uuid.uuid4())[:24]
        self._key_numbers = itertools.count()

    def describe_server(self) -> ServerInfo:
        """Return the facts found about the server."""
        return ServerInfo(
            base_url=self.config.base_url,
            sdk_version=self.config.sdk_version,
            facts=self.findings.facts,
        )

    async def sleep(self, seconds: float) -> None:
        """Sleep; ClientClosedError as soon as the client is closed."""
        await self.tasks.wait(lambda: self.clock.sleep(seconds))

    async def close(self) -> None:
        """End the client's tasks and sleeps, and close the connections."""
        self.tasks.close()
        await self.engine.aclose()

    # -------------------------------------------------------------------------------------- sending

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

        ``admit`` is what each attempt needs. ``credential`` takes the place of the client's own,
        and hides the response in errors. ``check`` says what is wrong with a response that decodes
        and is nevertheless of no use. For the request's timeout the server may be silent; the
        caller ends the call and its retries.
        """
        prepared = self.prepare(
            request, purpose, credential=credential, follow_redirects=follow_redirects
        )
        call = self._open(
            prepared, policy, lambda response: _decode(response, request.reply, check), admit
        )
        return self._drive(call)

    async def send_optional(
        self,
        request: Request[T],
        policy: Policy,
        *,
        purpose: Purpose = Purpose.SESSION,
        check: Callable[[T], str | None] | None = None,
    ) -> T | None:
        """Send as :meth:`send` does, to an endpoint that not every server has: None where it is
        absent.
        """
        try:
            return (await self.send(request, policy, purpose=purpose, check=check)).value
        except errors.APIStatusError as error:
            if is_absent(error):
                self.findings.note_absence(request.operation, error)
                return None
            raise

    def send_variant(
        self,
        first: Variant,
        written: dict[Variant, PreparedRequest],
        body: RequestBody,
        reply: type[T],
        *,
        numbers: Numbering | None = None,
        forms: FormAttempt | None = None,
        admit: Admission | None = None,
    ) -> Coroutine[Any, Any, Reply[T]]:
        """Send as :meth:`send` does, a request that may be sent under another number or in another
        form than the first.

        ``written`` are the variants that were encoded already, at least one.
        """
        known = next(iter(written.values()))
        call = self._open(known, SUBMIT, lambda response: _decode(response, reply, None), admit)
        call.prepared, call.body, call.sent = written, body, first
        submission = call.submission
        submission.number, submission.numbers, submission.forms = first.number, numbers, forms
        return self._drive(call)

    def send_stream(
        self, request: Request[Any], policy: Policy, admit: Admission, to: TokenQueue
    ) -> Coroutine[Any, Any, Reply[None]]:
        """Send a request whose response is a stream, as :meth:`send` does; again only until the
        first tokens have come.

        StreamsAbsent when the response is no stream.
        """
        prepared, receiver = (
            self.prepare(request, Purpose.STREAM),
            EventReceiver(self.clock, admit, to),
        )
        # Nothing may hold events back to pack them.
        headers = cast("Headers", prepared.headers)
        headers = Headers(headers.shared, {**headers.own, "Accept-Encoding": "identity"})
        prepared = msgspec.structs.replace(prepared, headers=headers, receive=receiver.receive)
        call = self._open(prepared, policy, receiver.check, admit)
        call.receiver = receiver
        return self._drive(call)

    async def send_once(self, prepared: PreparedRequest) -> RawResponse:
        """Make one attempt: return the response when it is a success, else raise the APIError that
        it is.
        """
        return (await self._drive(self._open(prepared, ONE_SHOT, lambda response: response))).value

    def _open(
        self,
        prepared: PreparedRequest,
        policy: Policy,
        read: Callable[[RawResponse], T],
        admit: Admission | None = None,
    ) -> _Call[T]:
        """Build the submission of a request that is the same in every attempt."""
        submission = Submission(
            operation=prepared.operation,
            policy=policy,
            settings=self._retry_settings,
            began=self.clock.monotonic(),
            random=self.clock.random,
            fields=self._refused,
        )
        # Heartbeats always pass. So do polls for accepted work: they are single attempts.
        guard = (
            None
            if self._gate is None or prepared.purpose is Purpose.HEARTBEAT or policy is ONE_SHOT
            else self._gate.guard(self, prepared, admit)
        )
        return _Call(self, submission, read, {_FIRST: prepared}, held=guard or admit, guard=guard)

    # ------------------------------------------------------------------------------------- attempts

    async def drive(
        self,
        work: Attempts[T],
        step: Next = _FIRST,
        guard: GuardedAdmission | None = None,
    ) -> T:
        """Carry out the steps of something, until it has a result or is given up. No other loop in
        this client tries again.
        """
        while not isinstance(step, Fail):
            try:
                if isinstance(step, Wait):
                    self.observers.report_retry(work.operation, step)
                if isinstance(step, (Wait, Pause)):
                    sleep = self.sleep if guard is None else partial(guard.sleep, self.sleep)
                    await sleep(step.seconds)
                    step = Next()  # which holds no error, whose traceback holds this frame
                result = await work.attempt(step)
                if not isinstance(result, Next):
                    return result
                step = result
            except Exception as error:  # noqa: BLE001 - any of them decides what follows
                step = await work.fail(error)
        try:
            raise step.error
        finally:
            del step  # which would hold this frame, by the traceback, until garbage is collected

    def _drive(self, call: _Call[T]) -> Coroutine[Any, Any, Reply[T]]:
        return self.drive(call, call.sent, call.guard)

    async def make_exchange(self, call: _Call[Any], prepared: PreparedRequest) -> RawResponse:
        """Send with the current credential, and follow redirects; a redirect to another origin
        loses every credential. Raises the APIError of a failure.
        """
        if self._refused.paths:
            prepared = self._without_refused(prepared)
        if not prepared.has_own_credential:
            call.credential = self.auth.key
            if call.credential is None:
                await call.enter()  # first, so that a token is one of the moment when it is sent
                call.credential = await self.auth.credential()
                prepared = self._under(call.credential, prepared)
        call.record = prepared.record
        if call.receiver is not None:
            call.receiver.begin(prepared)
        call.exchanges += 1
        if call.held is not None:
            await call.enter()
        attempt = _ObservedAttempt(self, prepared) if self.observers.active else None
        request, redirects = prepared, 0
        try:
            while True:
                recorders = RECORDERS if self._dump is None else (*RECORDERS, self._dump)
                sent = (
                    send_recorded(self.engine, request, self.clock, tuple(recorders))
                    if recorders
                    else self.engine.send(request)
                )
                response = await sent
                if response.status < 300 or redirects == _MAX_REDIRECTS:
                    break
                if (redirected := _follow_redirect(request, response)) is None:
                    break
                request, redirects = redirected, redirects + 1
        except ExchangeFailed as failure:
            raise self._lose(prepared, failure, attempt) from failure
        except MemoryError:
            raise self._lose(prepared, messages.out_of_memory(), attempt) from None
        except BaseException:
            if attempt is not None:
                attempt.end(None, None)
            raise
        self.reachability.failure, self.reachability.has_answered = None, True
        if not is_success(response.status):
            raise self._refuse(response, attempt)
        if attempt is not None:
            attempt.end(response, None)
        return response

    def _lose(
        self, prepared: PreparedRequest, failure: ExchangeFailed, attempt: _ObservedAttempt | None
    ) -> errors.APIConnectionError:
        """Return the error for an exchange without a response."""
        self.reachability.failure = str(failure)
        failure.wrong_address &= not self.reachability.has_answered
        error = connection_error(prepared, failure)
        if attempt is not None:
            attempt.end(None, error)
        return error

    def describe_timeout(self, request: Request[Any]) -> errors.APIConnectionError:
        """Return the error of a call that exceeded its timeout."""
        failure = ExchangeFailed(f"no result within {request.timeout_seconds:g} s", timed_out=True)
        return connection_error(self.prepare(request, Purpose.SESSION), failure)

    def _refuse(
        self, response: RawResponse, attempt: _ObservedAttempt | None
    ) -> errors.APIStatusError:
        """Return the error for a response that is not a success."""
        error = status_error(response, self.clock)
        if response.request.confined and response.status in _REPEATING_REDIRECTS:
            error.add_note(
                "The request has an access token in its body, so it is not sent to another server."
            )
        if attempt is not None:
            attempt.end(response, error)
        return error

    def open_retries(self, policy: Policy, began: float | None = None) -> Retries:
        """Count the failures, since a time, of something promised, which is waited for also where
        submissions fail fast.
        """
        return Retries(
            msgspec.structs.replace(self._retry_settings, fails_fast=False).limit(policy),
            self.clock.monotonic() if began is None else began,
            self.clock.random,
        )

    # ------------------------------------------------------------------------------------ preparing

    def prepare(
        self,
        request: Request[Any],
        purpose: Purpose,
        *,
        compress: bool = False,
        credential: Credential | None = None,
        follow_redirects: bool = True,
    ) -> PreparedRequest:
        """Encode a request; the same prepared request serves every attempt, under one idempotency
        key.

        ``compress`` sends a body as zstd, where this installation can.
        """
        own = {**request.headers}
        if (present := CURRENT_OPERATION.get()) is not None and present.trace_headers is not None:
            own |= present.trace_headers
        if request.method != "GET":
            own[_IDEMPOTENCY_HEADER] = f"{self._key_prefix}{next(self._key_numbers):012x}"
        media_type: str | None = None
        body: Sequence[Piece] = ()
        nbytes = 0
        record = None if isinstance(request.body, Binary) else request.body
        if isinstance(request.body, Binary):
            body, nbytes = as_pieces(request.body.content)
            media_type = request.body.media_type
        elif record is not None:
            encoded = json.encode(record)
            body, nbytes, media_type = (encoded,), len(encoded), json.MEDIA_TYPE
        if body and compress and _wire.available():
            encoded, record = _wire.compress(body), None
            body, nbytes = (encoded,), len(encoded)
            own["Content-Encoding"] = _wire.CONTENT_ENCODING
        _announce_length(own, body, nbytes)
        shared = self._share_headers(
            ", ".join(request.accepts), media_type, credential or self.auth.key
        )
        extra_headers = _add_extra(own, shared, request.extra_headers or {})
        address = self._url(request, request.query)
        return PreparedRequest(
            method=request.method,
            operation=request.operation,
            url=self._url(request, self._with_defaults(request.query))
            if self.config.query
            else address,
            headers=_join(shared, own),
            redacted_url=address,
            secret_headers=self._secret_headers | extra_headers,
            body=body,
            nbytes=nbytes,
            record=record,
            purpose=purpose,
            follows_redirects=follow_redirects,
            confined=_holds_secret(request.body),
            silence_seconds=request.timeout_seconds or self._silences[purpose],
            has_own_credential=credential is not None,
        )

    def _share_headers(
        self, accept: str, media_type: str | None, credential: Credential | None
    ) -> SharedHeaders:
        """Return the headers of every request that accepts and sends the same under a credential:
        always the same object.

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
        """Return the query with the settings' defaults added where a parameter is missing."""
        return urlencode({**self.config.query, **dict(parse_qsl(query, keep_blank_values=True))})

    def _under(self, credential: Credential | None, prepared: PreparedRequest) -> PreparedRequest:
        """Return the request with the current credential, which may have changed since it was
        prepared.
        """
        headers = cast("Headers", prepared.headers)
        if headers.shared.credential is credential:
            return prepared
        shared = self._share_headers(headers["Accept"], headers.get("Content-Type"), credential)
        return msgspec.structs.replace(prepared, headers=_join(shared, headers.own))

    def _without_refused(self, prepared: PreparedRequest) -> PreparedRequest:
        """Leave out fields that the server refuses; another body has another idempotency key, which
        is always the same.
        """
        record = (
            None
            if prepared.record is None
            else self._refused.without(prepared.operation, prepared.record)
        )
        if record is None or record is prepared.record:
            return prepared
        encoded = json.encode(record)
        headers = cast("Headers", prepared.headers)
        own = {name: value for name, value in headers.own.items() if name != "Content-Length"}
        _announce_length(own, (encoded,), len(encoded))
        if _IDEMPOTENCY_HEADER in own:
            own[_IDEMPOTENCY_HEADER] = str(uuid.uuid5(uuid.NAMESPACE_OID, own[_IDEMPOTENCY_HEADER]))
        return msgspec.structs.replace(
            prepared,
            headers=Headers(headers.shared, own),
            body=(encoded,),
            nbytes=len(encoded),
            record=record,
        )


class _ObservedAttempt:
    """One attempt, as reported to observers."""

    def __init__(self, transport: Transport, prepared: PreparedRequest) -> None:
        self._transport, self._prepared = transport, prepared
        self._started = transport.clock.monotonic()
        event = AttemptStarted(
            operation=prepared.operation, started=self._started, sent_nbytes=prepared.nbytes
        )
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


def _decode(
    response: RawResponse, kind: type[T] | None, check: Callable[[T], str | None] | None
) -> T:
    """Return the typed value of a JSON response; bytes where it is none, None where the operation
    has no content.
    """
    if kind is None:
        return cast("T", None)
    if not response.content:
        raise invalid_response(response, f"the body is empty (status {response.status})")
    if kind is bytes:
        return cast("T", response.content)
    value = decode_json(response, kind)
    if check is not None and (fault := check(value)) is not None:
        raise invalid_response(response, fault)
    return value


def _silence_seconds(config: Config, purpose: Purpose) -> float:
    """Return how long a try waits for a silent server. Servers hold polls and streams, whatever the
    patience.
    """
    patience, silence = config.patience_seconds, config.silence_seconds
    if purpose in (Purpose.POLL, Purpose.STREAM):
        return purpose.read_seconds if silence is None else max(purpose.read_seconds, silence)
    longest = purpose.read_seconds if silence is None else silence
    return longest if patience is None else min(longest, max(SHORTEST_PATIENCE_SECONDS, patience))


def _announce_length(headers: dict[str, str], body: Sequence[Piece], nbytes: int) -> None:
    """Add the length of a body to the headers if it is handed over in pieces."""
    if len(body) > 1 or nbytes > INLINE_NBYTES:
        headers["Content-Length"] = str(nbytes)


def _join(shared: SharedHeaders, own: Mapping[str, str]) -> Headers:
    """Join headers; the user's settings may name one of this operation, which then counts."""
    if not shared.keys().isdisjoint(own):
        kept = {name: value for name, value in shared.items() if name not in own}
        shared = SharedHeaders(kept, shared.credential)
    return Headers(shared, own)


def _add_extra(
    own: dict[str, str], shared: Mapping[str, str], extra: Mapping[str, str]
) -> frozenset[str]:
    """Add the headers of one call, each spelled as the one that it replaces; return their names in
    lower case.
    """
    if not extra:
        return frozenset()
    spelling = {name.lower(): name for name in (_KEY_HEADER, *shared, *own)}
    for name, value in extra.items():
        own[spelling.setdefault(name.lower(), name)] = value
    return frozenset(map(str.lower, extra))


def _holds_secret(body: object) -> bool:
    """Return whether a field is set that the contract marks as secret."""
    secret: frozenset[str] = getattr(body, "_secret_fields", frozenset[str]())
    return any(getattr(body, name) is not None for name in secret)


def _follow_redirect(request: PreparedRequest, response: RawResponse) -> PreparedRequest | None:
    """Return the request to the address that a response names; None where it is none or must not be
    followed.

    ExchangeFailed for an address that cannot be used.
    """
    if not request.follows_redirects or (location := response.headers.get("location")) is None:
        return None
    followed = (
        _REPEATING_REDIRECTS | _GET_REDIRECTS if request.method == "GET" else _REPEATING_REDIRECTS
    )
    if response.status not in followed:
        return None
    try:
        url = urljoin(request.url, location)
        here, there = urlsplit(request.url), urlsplit(url)
    except ValueError as error:
        raise ExchangeFailed(f"redirected to an address that cannot be used: {error}") from error
    if (here.scheme, here.netloc) == (there.scheme, there.netloc):
        return msgspec.structs.replace(request, url=url)
    return (
        None
        if request.confined
        else msgspec.structs.replace(request, url=url, headers=headers_without_secrets(request))
    )
