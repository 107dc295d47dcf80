"""One exchange with the server under test, read strictly; and what a run knows of the server."""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar, cast

import attrs
import httpx
import msgspec
from msgspec import inspect
from tinker_wire import models
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Binary, Request

from tinker._http.submission import RefusedFields
from tinker._wire import EVENT_STREAM, EventDecoder, json, proto
from tinker.testing.conformance import outcome
from tinker.testing.conformance.outcome import LIMITS, Blocked, Contradiction, Crash, Observation
from tinker.types.results import ForwardBackwardOutput, SampleResponse

BodyFormat: TypeAlias = Literal["proto", "json"]

#: How often clients send a heartbeat.
HEARTBEAT_SECONDS = 10.0
#: Longer than one heartbeat may take.
_LONGEST_END_SECONDS = 20.0
_SCHEME = "tinker://"
_SUCCESS = models.FinishSessionRequest(reason={"type": "success"}, detail=None)


@attrs.define
class ServerKnowledge:
    """What earlier checks of a run found out about the server.

    ``basis_seconds``: how long the longest check took on which others rest. ``rate`` and ``eps``:
    of steps as long as the gradient. ``spare``: a model that was not unloaded, and its next number.
    ``refused``: fields at their default that the server refuses, which are left out as clients do.
    ``broken``: checks on which others depend and which failed or were blocked, each with the one
    that failed and its error. ``statuses``: operation to the statuses of its successes. ``full``:
    operations that were refused with 429 until the deadline. ``lacking``: operations for cleanup
    that the server does not have. ``submitted``: the hash of the body of each request id;
    ``fetched``: those with a result. ``shared_session``: the session of all checks if sessions
    cannot be finished, or have one id; ``numbers_used``: how many numbers of models and samplers
    earlier checks took in it. ``leaves_gradients``: whether new models begin with the gradient of
    an unloaded one.
    """

    base_model: str | None = None
    form: BodyFormat | None = None
    basis_seconds: float = 0.0
    rate: float | None = None
    eps: float = 1e4
    spare: tuple[str, int] | None = None
    refused: RefusedFields = attrs.field(factory=RefusedFields)
    broken: dict[str, tuple[str, str]] = attrs.field(factory=lambda: dict[str, tuple[str, str]]())
    statuses: dict[str, set[int]] = attrs.field(factory=lambda: dict[str, set[int]]())
    full: set[str] = attrs.field(factory=lambda: set[str]())
    lacking: set[str] = attrs.field(factory=lambda: set[str]())
    submitted: dict[str, int] = attrs.field(factory=lambda: dict[str, int]())
    fetched: set[str] = attrs.field(factory=lambda: set[str]())
    shared_session: str | None = None
    numbers_used: int = 0
    leaves_gradients: bool = False


class Heartbeats:
    """A thread that sends heartbeats from the first session until :meth:`close`, also while a poll
    is held.

    ``event`` makes the event that the thread waits for; ``send`` sends one heartbeat of a session,
    and raises nothing.
    """

    def __init__(self, event: Callable[[], threading.Event], send: Callable[[str], None]) -> None:
        self._event, self._send = event, send
        self._sessions: tuple[str, ...] = ()
        self._ended: threading.Event
        self._thread: threading.Thread | None = None

    def keep(self, session_id: str) -> None:
        """Send heartbeats of that session from now on."""
        self._sessions += (session_id,)
        if self._thread is None:
            self._ended = self._event()
            self._thread = threading.Thread(
                target=self._run, name="tinker-conformance-heartbeats", daemon=True
            )
            self._thread.start()

    def release(self, session_id: str) -> None:
        """Send no more heartbeats of that session."""
        self._sessions = tuple(one for one in self._sessions if one != session_id)

    def close(self) -> None:
        """Stop. Returns when the heartbeat in progress has a response or has timed out."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join(_LONGEST_END_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            for session in self._sessions:
                if not self._ended.is_set():
                    self._send(session)


@attrs.define
class Cleanup:
    """Ids and paths of what a check has made on the server and must delete."""

    checkpoints: list[str] = attrs.field(factory=lambda: list[str]())
    models: list[str] = attrs.field(factory=lambda: list[str]())
    sessions: list[str] = attrs.field(factory=lambda: list[str]())

    def add(self, path: str) -> str:
        """Return the path of a checkpoint, which may not be there yet and is deleted at the end."""
        self.checkpoints += [path] if path not in self.checkpoints else []
        return path

    def requests(self) -> Iterator[Request[Any]]:
        """Yield the requests that delete everything, in an order that servers can follow."""
        for path in self.checkpoints:
            with suppress(Blocked):  # no URL names the checkpoint
                yield weights_api.delete_checkpoint(**checkpoint_parts(path))
        for model in self.models:
            yield training_api.unload_model(models.UnloadModelRequest(model_id=model))
        for session in self.sessions:
            yield service_api.finish_session(_SUCCESS, session_id=session)


def checkpoint_parts(path: str, saved_in: str = "weights.save") -> dict[str, str]:
    """Return the parts of a checkpoint's URL. Blocked by the check of such saves if its path has no
    run and no name.
    """
    run, _, checkpoint = path.removeprefix(_SCHEME).partition("/")
    if not path.startswith(_SCHEME) or not checkpoint:
        raise Blocked(f"no URL names the checkpoint {path!r}", saved_in)
    return {"training_run_id": run, "checkpoint_id": checkpoint}


#: Clients give a poll up after that, and ask again.
LONGEST_POLL_SECONDS = 45.0
_POLL = "retrieve_future"
MAX_ANSWER_NBYTES = 256 << 20
_TOO_MANY = 429
_WAIT = frozenset({_TOO_MANY, 503})
_WAIT_SECONDS = 1.0
_LONGEST_HEARTBEAT_SECONDS = 10.0
_KEY_HEADER = "X-API-Key"


@attrs.frozen
class KitClock:
    """Time as the kit sees it, so that its own tests need not wait. ``event`` makes events that are
    waited for so long.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    event: Callable[[], threading.Event] = threading.Event


class CheckDeadline:
    """When a check must be done. An exchange that has begun may still continue for as long again,
    byte by byte.
    """

    def __init__(self, seconds: float, clock: KitClock) -> None:
        self._seconds, self._clock = seconds, clock
        self._ends = clock.monotonic() + seconds

    def remaining(self, what: str) -> float:
        """Return the seconds that are left. Contradiction, which names ``what``, if
        there are none.
        """
        left = self._ends - self._clock.monotonic()
        if left <= 0:
            raise Contradiction(f"{what}: not done within {self._seconds:g} s", cause="late")
        return left

    def pause(self, seconds: float, what: str) -> None:
        """Sleep that long; Contradiction naming ``what`` when the deadline comes first."""
        self._clock.sleep(min(seconds, self.remaining(what)))
        self.remaining(what)


@attrs.frozen
class SentRequest:
    """A request as it goes out. ``key``: None sends no credential. Content and headers may hold
    secrets.

    ``operation`` is its id in the document, empty for addresses outside it.
    """

    method: str
    path: str
    key: str | None = attrs.field(default=None, repr=False)
    headers: Mapping[str, str] = attrs.field(factory=lambda: dict[str, str](), repr=False)
    content: bytes = attrs.field(default=b"", repr=False)
    operation: str = ""

    @property
    def is_protobuf(self) -> bool:
        """Return whether its body is protobuf."""
        return self.headers.get("Content-Type") == proto.MEDIA_TYPE

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@attrs.frozen
class ReceivedResponse:
    """What came back, read completely."""

    message: SentRequest
    status: int
    headers: httpx.Headers
    content: bytes = attrs.field(repr=False)

    @property
    def media_type(self) -> str:
        """Return the media type without parameters, in lower case."""
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    @property
    def excerpt(self) -> str:
        """Return the beginning of the body as text, for reports."""
        return self.content[:200].decode(errors="replace")

    def __str__(self) -> str:
        return f"{self.message} answered {self.status}" + (
            f": {self.excerpt}" if self.status >= 400 else ""
        )


class Connection:
    """The connections of one run, and what it has learned about the server. Close it."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        base_model: str | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: KitClock | None = None,
    ) -> None:
        self.base_url: str = base_url.rstrip("/")
        self.api_key = api_key
        self.clock: KitClock = clock or KitClock()
        self.known: ServerKnowledge = ServerKnowledge(base_model=base_model)
        self.heartbeats: Heartbeats = Heartbeats(self.clock.event, self._beat)
        self.last: str = "no response"
        self._client = httpx.Client(
            headers=headers, transport=transport, follow_redirects=False, trust_env=False
        )

    def close(self) -> None:
        """End the heartbeats and close every connection."""
        self.heartbeats.close()
        self._client.close()

    def reach(self, seconds: float) -> None:
        """Raise Contradiction unless something answers at the URL, whatever it is."""
        self._once(SentRequest("GET", "/api/v1/healthz"), CheckDeadline(seconds, self.clock))

    def send(
        self,
        message: SentRequest,
        deadline: CheckDeadline,
        note: Callable[[Observation], None],
        seconds: float = math.inf,
    ) -> ReceivedResponse:
        """Return the response, of any status below 500. Contradiction for 5xx and for none; 429 and
        503 are waited out.

        ``note`` is told of a 429 that does not say when to come again; ``seconds`` is the longest
        time to wait for a response. Blocked when 429 lasts longer than the check may; after that
        the same operation is not waited for any more.
        """
        while True:
            try:
                answer = self._once(message, deadline, seconds)
            except outcome.Broken:  # clients ask once more, too
                answer = self._once(message, deadline, seconds)
            if answer.status not in _WAIT:
                break
            if (
                answer.status == _TOO_MANY
                and not {"retry-after", "retry-after-ms"} & answer.headers.keys()
            ):
                note(
                    Observation(
                        f"{answer}, without Retry-After", "no delay", operation=message.operation
                    )
                )
            self._wait(answer, deadline)
        operation, self.last = (
            message.operation,
            f"{message.operation} ({message}) answered {answer.status}: {answer.excerpt}",
        )
        if answer.status == 501:
            raise outcome.Absent(str(answer), cause=f"501: {operation}", operation=operation)
        if answer.status >= 500:
            cause = "protobuf" if message.is_protobuf else f"crash: {operation or message}"
            raise Crash(str(answer), cause=cause, operation=operation)
        return answer

    def _wait(self, answer: ReceivedResponse, deadline: CheckDeadline) -> None:
        """Wait as long as is asked for."""
        operation, is_full = answer.message.operation, answer.status == _TOO_MANY
        try:
            if is_full and operation in self.known.full:
                raise Blocked(f"{answer}, as before", LIMITS)
            deadline.pause(_retry_after(answer), str(answer))
        except Contradiction as error:
            if not is_full:
                raise Crash(
                    f"{answer}, to the end", cause=f"crash: {operation}", operation=operation
                ) from error
            self.known.full.add(operation)
            raise Blocked(f"{answer}, for as long as the check may take", LIMITS) from error

    def _beat(self, session_id: str) -> None:
        """Say once that a session is alive, whatever is answered; from a thread of its own."""
        beat = models.SessionHeartbeatRequest(session_id=session_id)
        request = service_api.session_heartbeat(beat)
        body = self.known.refused.without(request.operation, beat)
        headers = {"Accept": json.MEDIA_TYPE, "Content-Type": json.MEDIA_TYPE, **request.headers}
        message = SentRequest(
            request.method,
            request.path,
            self.api_key,
            headers,
            json.encode(body),
            request.operation,
        )
        with suppress(outcome.CheckEnd):
            self._once(message, CheckDeadline(_LONGEST_HEARTBEAT_SECONDS, self.clock))

    def fetch(
        self, url: str, deadline: CheckDeadline, file: bytes | None = None
    ) -> ReceivedResponse:
        """Return the response of another address, asked or sent a file without the credential."""
        return self._once(
            SentRequest("GET" if file is None else "PUT", url, content=file or b""), deadline
        )

    def _once(
        self, message: SentRequest, deadline: CheckDeadline, seconds: float = math.inf
    ) -> ReceivedResponse:
        headers = dict(message.headers) | (
            {} if message.key is None else {_KEY_HEADER: message.key}
        )
        url = message.path if "://" in message.path else self.base_url + message.path
        longest = LONGEST_POLL_SECONDS if message.operation == _POLL else math.inf
        timeout = min(deadline.remaining(str(message)), longest, seconds)
        try:
            with self._client.stream(
                message.method, url, headers=headers, content=message.content, timeout=timeout
            ) as response:
                return ReceivedResponse(
                    message,
                    response.status_code,
                    response.headers,
                    _read(response, message, deadline),
                )
        except httpx.TimeoutException as error:
            raise outcome.Late(
                f"{message}: no response within {timeout:.0f} s",
                cause="late",
                operation=message.operation,
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            how, operation = f"the connection broke: {error}".removesuffix(": "), message.operation
            raise outcome.Broken(
                f"{message}: {how}",
                cause=f"broken: {operation}: {outcome.normalize(how)}",
                operation=operation,
            ) from error


def _read(response: httpx.Response, message: SentRequest, deadline: CheckDeadline) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        deadline.remaining(str(message))
        if len(content) > MAX_ANSWER_NBYTES:
            raise Contradiction(f"{message}: the response is larger than {MAX_ANSWER_NBYTES} bytes")
    return bytes(content)


def _retry_after(answer: ReceivedResponse) -> float:
    """Return the delay that is asked for in seconds; dates and nonsense count as a second."""
    in_ms = answer.headers.get("retry-after-ms")
    try:
        return max(
            0.0, float(in_ms or answer.headers.get("retry-after", "")) * (1e-3 if in_ms else 1.0)
        )
    except ValueError:
        return _WAIT_SECONDS


T = TypeVar("T")

MISCOUNT, WIDTH = "count of results", "width of tensors"


def record(answer: ReceivedResponse, kind: type[T]) -> T:
    """Return the JSON body as a record. Contradiction when it is something else, or
    does not fit.
    """
    _require_type(answer, json.MEDIA_TYPE)
    try:
        return json.decode(answer.content, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _misfit(
            answer, kind, f"the response is not a {kind.__name__}: {error}: {answer.excerpt}", error
        ) from error


def _require_type(answer: ReceivedResponse, *wanted: str) -> None:
    if answer.media_type not in wanted:
        how = (
            f"{answer.message}: a body as {answer.media_type or 'nothing'}, not as "
            f"{' or '.join(wanted)}"
        )
        raise Contradiction(how, cause="media type", operation=answer.message.operation)


def _misfit(answer: ReceivedResponse, kind: type[Any], how: str, error: Exception) -> Contradiction:
    """Describe a response that does not fit. The same misfit of the same record is one cause."""
    cause = f"misfit: {kind.__name__}: {error}"
    return Contradiction(
        f"{answer.message}: {how}",
        cause=cause,
        operation=answer.message.operation,
        schema=kind.__name__,
    )


def events(answer: ReceivedResponse, kind: type[T]) -> list[T]:
    """Return the data of each event of a stream as a record. Contradiction when it is something
    else, or does not fit.
    """
    _require_type(answer, EVENT_STREAM)
    try:
        return [
            json.decode(event.data.encode(), kind) for event in EventDecoder().feed(answer.content)
        ]
    except (ValueError, msgspec.DecodeError) as error:
        raise _misfit(
            answer, kind, f"an event is not a {kind.__name__}: {error}: {answer.excerpt}", error
        ) from error


#: The results that come in two forms: how each form is read, and the record of the JSON form.
_TWO_FORMS: dict[type[Any], tuple[Callable[[bytes], Any], Callable[[Any], Any], type[Any]]] = {
    ForwardBackwardOutput: (
        proto.decode_loss_output,
        json.public_loss_output,
        models.ForwardBackwardOutput,
    ),
    SampleResponse: (proto.decode_sample, json.public_sample, models.SampleResponse),
}


def has_two_forms(kind: type[Any]) -> bool:
    """Return whether a result of this type may be JSON or protobuf."""
    return kind in _TWO_FORMS


def result(answer: ReceivedResponse, kind: type[T]) -> T:
    """Return the result of a request. Contradiction when it does not fit."""
    if not has_two_forms(kind):
        return record(answer, kind)
    read_proto, read_json, schema = _TWO_FORMS[kind]
    _require_type(answer, proto.MEDIA_TYPE, json.MEDIA_TYPE)
    try:
        is_proto = answer.media_type == proto.MEDIA_TYPE
        return cast(
            "T", read_proto(answer.content) if is_proto else read_json(record(answer, schema))
        )
    except ValueError as error:
        raise _misfit(
            answer, schema, f"the result is not a {schema.__name__}: {error}", error
        ) from error


def find_mismatches(request: Request[Any], found: object) -> Iterator[tuple[str, str]]:
    """Yield in what the result of a loss or of a sample is not that of its request, each with its
    cause.
    """
    if isinstance(found, ForwardBackwardOutput):
        data, outputs = _count_data(request), len(found.loss_fn_outputs)
        if data not in (None, outputs):
            yield MISCOUNT, f"there are {outputs} outputs for {data} data"
    if isinstance(found, SampleResponse) and isinstance(body := request.body, models.SampleRequest):
        if len(found.sequences) != body.num_samples:
            yield MISCOUNT, f"asked for {body.num_samples} samples, got {len(found.sequences)}"
        for one in found.sequences:
            tokens, logprobs = one.tokens, one.logprobs
            if len(tokens) > (body.sampling_params.max_tokens or math.inf) and {*tokens[1::2]} <= {
                0,
                -1,
            }:
                how = (
                    "every second token is 0 or -1, as where each is written with "
                    "8 bytes instead of 4"
                )
                yield WIDTH, f"{how}: {tokens}"
            if logprobs is not None and len(logprobs) != len(tokens):
                yield MISCOUNT, f"{len(tokens)} tokens have {len(logprobs)} logprobs"


def _count_data(request: Request[Any]) -> int | None:
    """Return how many data a loss has; None for a body that is written by hand."""
    match request.body:
        case Binary(media_type=proto.MEDIA_TYPE, content=content):
            return len(proto.decode_forward_backward(b"".join(content)).data)
        case (
            models.ForwardBackwardRequest(forward_backward_input=given)
            | models.ForwardRequest(forward_input=given)
        ):
            return len(given.data)
        case _:
            return None


def anomalies(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield what clients survive and the document does not say, each with its cause: unlisted
    values, times without a zone.
    """
    if isinstance(value, msgspec.Struct):
        for field in _fields(type(value)):
            found = getattr(value, field.name)
            place = f"{where}.{field.encode_name}".lstrip(".")
            yield from _find_unlisted(found, field.type, place)
            yield from anomalies(found, place)
    elif isinstance(value, datetime.datetime) and value.tzinfo is None:
        yield "time without a zone", f"{where}: a time without a zone"
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[str, object]", value).items():
            yield from anomalies(item, f"{where}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in cast("Sequence[object]", value):
            yield from anomalies(item, f"{where}[]")


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return described.fields


def _find_unlisted(value: object, kind: inspect.Type, where: str) -> Iterator[tuple[str, str]]:
    """Yield a text that an open enum does not list, and an object that is none of the records of an
    open union.
    """
    if isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, Sequence):
        for one in cast("Sequence[object]", value):
            yield from _find_unlisted(one, kind.item_type, f"{where}[]")
    types = kind.types if isinstance(kind, inspect.UnionType) else ()
    listed = [one for one in types if isinstance(one, inspect.LiteralType)]
    if isinstance(value, str) and listed and value not in listed[0].values:
        yield (
            f"unlisted: {where}: {value}",
            f"{where}: {value!r} is none of {', '.join(map(str, listed[0].values))}",
        )
    records = [one for one in types if isinstance(one, inspect.StructType) and one.tag_field]
    if isinstance(value, Mapping) and records:
        tag, known = records[0].tag_field, ", ".join(str(one.tag) for one in records)
        found = cast("Mapping[object, object]", value).get(tag)
        yield f"unlisted: {where}.{tag}", f"{where}.{tag}: {found!r} is none of {known}"


def detail(answer: ReceivedResponse) -> str:
    """Return what a refusal says, for the report; its beginning where it is not in the form of the
    contract.
    """
    try:
        body: Any = msgspec.json.decode(answer.content)
        told = body["detail"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return answer.excerpt or "nothing"
    return first_line(told) if isinstance(told, str) else msgspec.json.encode(told).decode()[:200]


def first_line(told: str) -> str:
    """Return what an error says without its traceback: its first line, or where it begins with a
    traceback its last.
    """
    lines = told.strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
