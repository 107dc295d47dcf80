"""Faults of exchanges, the script that assigns them, and a port that delivers what it says."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import itertools
import logging
import random
import re
import ssl
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

import attrs
import httpx
import msgspec
from httpunk import H2Reason, HeaderMap, HTTPunkError, h1, h2
from httpunk.asyncio import AutoServerProtocol
from tinker_wire.operations import OPERATIONS

from tinker._wire import proto

FaultKind: TypeAlias = Literal[
    "status",
    "drop",
    "hang",
    "delay",
    "truncate",
    "corrupt",
    "slow",
    "header",
    "deep",
    "trickle",
    "inform",
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
T = TypeVar("T")
ANY = "*"
SLOW_PIECES = 8
DEEP_JSON = b'{"detail":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
HeaderValue: TypeAlias = str | bytes

# What overloaded and restarting servers and the proxies before them answer.
_STATUSES = (429, 429, 500, 502, 503, 504)
# What proxies and firewalls put into headers: Latin-1, UTF-8, and bytes of no encoding.
_HEADER_BYTES = (b"caf\xe9", "caf\u00e9".encode(), b"\xff\xfe\x80")
_INFORMATIONAL = (100, 102, 103)


def _headers(given: Mapping[str, HeaderValue]) -> httpx.Headers:
    """Return headers of any bytes; text is encoded as UTF-8."""
    return httpx.Headers(
        cast("Mapping[str, str]", given),
        encoding=None if isinstance(given, httpx.Headers) else "utf-8",
    )


@attrs.frozen(kw_only=True)
class ServerResponse:
    """A complete response. Header values may be any bytes."""

    status: int
    headers: httpx.Headers = attrs.field(converter=_headers)
    content: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Fault:
    """One fault. None for ``seconds`` or ``count`` means forever.

    ``answer`` replaces the server's response, as in a ``status`` fault. ``header`` is added to the
    server's response, and ``body`` replaces its body. ``kept_fields`` is the number of fields that
    are left of a protobuf body; nothing is left of another one. ``count`` is the number of bytes
    that trickle, or of responses with the status ``informs``. With ``error_code``, a ``drop``
    resets the stream of HTTP/2 instead of breaking its connection.
    """

    kind: FaultKind
    applied: bool = False
    seconds: float | None = None
    answer: ServerResponse | None = None
    header: tuple[str, HeaderValue] | None = None
    body: bytes | None = attrs.field(default=None, repr=False)
    kept_fields: int | None = None
    count: int | None = 1
    informs: int = 103
    error_code: int | None = None

    @property
    def name(self) -> str:
        """Return a short name for totals and messages."""
        status = "" if self.answer is None else f" {self.answer.status}"
        is_after = self.applied and self.kind in ("drop", "hang", "status")
        return f"{self.kind}{status}{' after' if is_after else ''}"


@attrs.frozen
class Delivery:
    """A response on its way back. None for ``answer`` means no response; ``fault`` is applied to
    it.
    """

    answer: ServerResponse | None
    fault: Fault | None


def status_fault(
    status: int,
    headers: Mapping[str, HeaderValue] | None = None,
    body: object = None,
    *,
    applied: bool = False,
    kind: FaultKind = "status",
) -> Fault:
    """Return a fault that replaces the response. Bytes in ``body`` are sent unchanged, else JSON;
    None sends a detail.
    """
    media: dict[str, HeaderValue] = (
        {} if isinstance(body, bytes) else {"content-type": "application/json"}
    )
    said = {"detail": f"scripted {status}"} if body is None else body
    content = body if isinstance(body, bytes) else msgspec.json.encode(said)
    answer = ServerResponse(status=status, headers={**media, **(headers or {})}, content=content)
    return Fault(kind=kind, applied=applied, answer=answer)


def apply_fault(answer: ServerResponse | None, fault: Fault | None) -> ServerResponse | None:
    """Apply a fault to the server's response. None means no response."""
    if fault is not None and (fault.answer is not None or fault.kind in ("drop", "hang")):
        return fault.answer
    if answer is None or fault is None:
        return answer
    if fault.kept_fields is not None:
        fields = (
            proto.split_fields(answer.content)
            if answer.headers.get("content-type") == proto.MEDIA_TYPE
            else []
        )
        return attrs.evolve(answer, content=b"".join(fields[: fault.kept_fields]))
    if fault.kind == "corrupt" or fault.body is not None:
        return attrs.evolve(
            answer, content=garble(answer.content) if fault.body is None else fault.body
        )
    if fault.header is not None:
        return attrs.evolve(
            answer,
            headers=httpx.Headers([*answer.headers.raw, *_headers(dict([fault.header])).raw]),
        )
    return answer


def pauses(answer: ServerResponse | None, fault: Fault | None) -> Iterator[float]:
    """Return the delay before each piece of the response, or after each informational response."""
    if fault is None or answer is None:
        return iter(())
    if fault.kind == "slow":
        return itertools.repeat(fault.seconds or 0.0, len(pieces(answer.content)))
    if fault.kind in ("trickle", "inform"):
        return repeat(fault.seconds or 0.0, fault.count)
    return iter(())


def repeat(value: T, count: int | None) -> Iterator[T]:
    """Return the value ``count`` times; None means forever."""
    return itertools.repeat(value) if count is None else itertools.repeat(value, count)


@attrs.define
class _ScriptedFault:
    operation: str
    fault: Fault
    left: int


class OtherForms:
    """Applies a scripted refusal to a request in any encoding.

    A client that does not know yet which encodings a server accepts sends a refused protobuf
    request again as JSON, with the same sequence number. Both get the same response.
    """

    OPERATIONS = ("forward_backward", "forward")

    def __init__(self) -> None:
        self._refused: dict[str, tuple[int | None, Fault]] = {}

    def note(self, headers: Mapping[str, str], body: bytes, fault: Fault) -> None:
        """Remember the response to the last protobuf request of each model."""
        if (
            fault.answer is None
            or fault.answer.status < 400
            or headers.get("content-type") != proto.MEDIA_TYPE
        ):
            return
        if (request := read_number(proto.MEDIA_TYPE, body)) is not None:
            self._refused[request.model_id] = request.seq_id, attrs.evolve(fault, applied=False)

    def of(self, operation: str, body: bytes) -> Fault | None:
        """Return the fault for a JSON request that was refused as protobuf."""
        if operation not in self.OPERATIONS or not self._refused:
            return None
        if (request := read_number("", body)) is None:
            return None
        number, fault = self._refused.get(request.model_id, (None, None))
        return fault if number == request.seq_id else None


class NumberedRequest(msgspec.Struct):
    """What the body of a run's request says of its place."""

    model_id: str
    seq_id: int | None = None


def read_number(media_type: str, body: bytes) -> NumberedRequest | None:
    """Return the run of a request and its number, from a body of JSON or protobuf; None for another
    body.
    """
    try:
        if media_type != proto.MEDIA_TYPE:
            return msgspec.json.decode(body, type=NumberedRequest)
        call = proto.decode_forward_backward(body)
    except (msgspec.DecodeError, UnicodeDecodeError, proto.ProtoError):
        return None
    return NumberedRequest(call.model_id, call.seq_id)


def check_least(name: str, value: float | None, least: float) -> None:
    """Raise ValueError for a number below ``least``, NaN included. None passes."""
    if value is not None and not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


_METHODS = {  # of the clients, and the operations that they call
    "compute_logprobs": "asample",
    "create_lora_training_client": "create_model",
    "create_sampling_client": "create_sampling_session",
    "forward_backward_custom": "forward",
    "load_state": "load_weights",
    "load_state_with_optimizer": "load_weights",
    "result": "retrieve_future",
    "sample": "asample",
    "sample_stream": "stream_sample",
    "save_state": "save_weights",
}


def check_operation(operation: str) -> None:
    """Raise ValueError for an operation that the contract does not have; ``*`` is any."""
    if operation != ANY and operation not in OPERATIONS:
        method = operation.removesuffix("_async")
        close = (
            [_METHODS[method]]
            if method in _METHODS
            else difflib.get_close_matches(method, OPERATIONS, 3)
        )
        hint = (
            f"; did you mean {' or '.join(close)}?"
            if close
            else f"; it has {', '.join(OPERATIONS)}"
        )
        raise ValueError(f"{operation!r} is not an operation of the contract{hint}")


class FaultScript:
    """Assigns faults to exchanges: scripted faults first, in order, then random faults. Used from
    any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[_ScriptedFault] = []
        self._chance: Callable[[str, int], Fault | None] | None = None
        self._counts: Counter[str] = Counter()

    def add(self, operation: str, fault: Fault, times: int) -> None:
        """Apply ``fault`` to the next ``times`` exchanges of ``operation`` (``*``: any).

        Raises ValueError for an unknown operation, for ``times`` or ``count`` below 1, and for
        negative ``seconds``.
        """
        check_least("times", times, 1)
        check_least("seconds", fault.seconds, 0)
        check_least("count", fault.count, 1)
        check_operation(operation)
        with self._lock:
            self._pending.append(_ScriptedFault(operation, fault, times))

    def by_chance(self, chance: Callable[[str, int], Fault | None] | None = None) -> None:
        """Choose the faults of later exchanges with ``chance(operation, number)``, if none is
        scripted; numbers start at 0.
        """
        with self._lock:
            self._counts.clear()
            self._chance = chance

    def take(self, operation: str) -> Fault | None:
        """Return the fault of the exchange that starts now."""
        with self._lock:
            for scripted in self._pending:
                if scripted.left > 0 and scripted.operation in (operation, ANY):
                    scripted.left -= 1
                    return scripted.fault
            number = self._counts[operation]
            self._counts[operation] += 1
            return None if self._chance is None else self._chance(operation, number)

    def list_pending(self) -> list[str]:
        """Return the scripted faults that have not happened."""
        with self._lock:
            return [
                f"{one.operation}: {one.fault.name}, {one.left} left"
                for one in self._pending
                if one.left > 0
            ]

    def forget(self) -> None:
        """Remove scripted and random faults."""
        with self._lock:
            self._pending.clear()
        self.by_chance()


def chances(
    rate: float,
    seed: int,
    kinds: Sequence[FaultKind] = KINDS,
    *,
    hang_seconds: float | None = None,
    longest_seconds: float = 1.0,
) -> Callable[[str, int], Fault | None]:
    """Return random faults for a share ``rate`` of all exchanges, with equal probability for each
    of ``kinds``.

    The fault of the n-th exchange of an operation depends only on the seed. A hanging connection
    breaks after ``hang_seconds`` (None: never). ``longest_seconds`` is the maximum duration of a
    delay or a slow body. Raises ValueError for a rate outside 0 to 1 and for negative seconds.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be from 0 to 1, got {rate}")
    check_least("hang_seconds", hang_seconds, 0)
    check_least("longest_seconds", longest_seconds, 0)

    def chance(operation: str, number: int) -> Fault | None:
        draw = random.Random(f"{seed}/{operation}/{number}")  # noqa: S311 - reproducible on purpose
        if draw.random() >= rate:
            return None
        kind = draw.choice(list(kinds))
        applied = kind not in ("status", "drop", "hang") or draw.random() < 0.5
        if kind == "status":
            headers = (
                {"retry-after-ms": str(draw.randrange(1, 500))} if draw.random() < 0.3 else None
            )
            return status_fault(draw.choice(_STATUSES), headers, applied=draw.random() < 0.3)
        if kind == "hang":
            return Fault(kind=kind, applied=applied, seconds=hang_seconds)
        if kind in ("header", "deep"):
            return _unusual(kind, draw)
        if kind == "corrupt":
            # of the body: garbage, or so many fields but one, of which JSON has none
            left = draw.randrange(4)
            return Fault(kind=kind, applied=True, kept_fields=left - 1 if left else None)
        seconds = draw.uniform(0.0, longest_seconds)
        if kind in ("slow", "trickle", "inform"):
            informs = draw.choice(_INFORMATIONAL)
            return Fault(
                kind=kind,
                applied=True,
                seconds=seconds / SLOW_PIECES,
                count=SLOW_PIECES,
                informs=informs,
            )
        return Fault(kind=kind, applied=applied, seconds=seconds)

    return chance


def _unusual(kind: FaultKind, draw: random.Random) -> Fault:
    """Return a fault with odd header bytes or deep JSON, equally often in an error and in the
    server's response.
    """
    header = ("x-chance", draw.choice(_HEADER_BYTES)) if kind == "header" else None
    body = DEEP_JSON if kind == "deep" else None
    if draw.random() < 0.5:
        return status_fault(
            draw.choice(_STATUSES), dict([header] if header else []), body, kind=kind
        )
    return Fault(kind=kind, applied=True, header=header, body=body)


def garble(content: bytes) -> bytes:
    """Return as many bytes that are neither JSON nor protobuf nor text."""
    return b"\xff" * len(content)


def pieces(content: bytes, count: int = SLOW_PIECES) -> list[bytes]:
    """Split the content into at most ``count`` parts."""
    size = max(1, -(-len(content) // count))
    return [content[start : start + size] for start in range(0, len(content), size)]


# Those without an id first, then the longest first: an id may hold slashes.
_PATHS = [
    (one.method, re.compile(re.sub(r"\\\{\w+\\\}", "(.+)", re.escape(one.path))), name)
    for name, one in sorted(
        OPERATIONS.items(), key=lambda row: ("{" in row[1].path, -len(row[1].path))
    )
]


def operation_of(method: str, path: str) -> str:
    """Return the operation id of a request, or its method and path if it is not in the contract."""
    found = (
        name for wanted, pattern, name in _PATHS if wanted == method and pattern.fullmatch(path)
    )
    return next(found, f"{method} {path}")


Serve: TypeAlias = Callable[[httpx.Request, Callable[[float], Any]], Awaitable[Delivery]]
_Request: TypeAlias = h1.ServerRequest | h2.ServerRequest

#: Headers of one connection.
_CONNECTION_HEADERS = frozenset(
    (b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"date", b"server")
)
_logger = logging.getLogger(__name__)


class Port:
    """A server of HTTP/1.1 and HTTP/2 in its own thread. ``serve`` returns the deliveries.

    With an ``ssl_context`` it requires TLS, and the context's ALPN protocols say which versions of
    HTTP it speaks.
    """

    def __init__(self, serve: Serve, ssl_context: ssl.SSLContext | None = None) -> None:
        self.serve = serve
        self.connections: weakref.WeakSet[_Peer] = weakref.WeakSet()
        self.ssl_context = ssl_context
        self._loop = asyncio.new_event_loop()
        self.listener: asyncio.Server | None = None
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="tinker-faulty-port", daemon=True)
        self._thread.start()
        self._call(self._listen())

    @property
    def url(self) -> str:
        """Return the base URL, which does not change."""
        return (
            f"http://127.0.0.1:{self._number}"
            if self.ssl_context is None
            else f"https://localhost:{self._number}"
        )

    def open_listener(self) -> None:
        """Accept connections again."""
        self._call(self._listen())

    def close_listener(self) -> None:
        """Refuse new connections and break existing ones."""
        self._call(self._stop_listening())

    def close(self) -> None:
        """Stop the server, and wait until the thread has ended."""
        self.close_listener()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        # which cancels all tasks at the end
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        if self.listener is None:
            connect, address = functools.partial(_Peer, self), ("127.0.0.1", self._number)
            self.listener = await self._loop.create_server(
                connect, *address, backlog=2048, ssl=self.ssl_context
            )
            self._number = self.listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        for connection in self.connections:
            connection.transport.abort()


class _Peer(AutoServerProtocol):
    """A client on its connection, which speaks HTTP/1.1 or HTTP/2."""

    def __init__(self, port: Port) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._port = port

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)  # type: ignore[no-untyped-call]
        self.transport = transport
        self._port.connections.add(self)
        if self._port.listener is None:
            transport.abort()

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().eof_received()  # type: ignore[no-untyped-call]
        return self._port.ssl_context is None  # asyncio has no half-closed connections over TLS

    async def handle(self, request: _Request) -> None:
        url = f"{self._port.url}{request.target}"
        asked = httpx.Request(
            request.method, url, headers=request.headers.raw_items(), content=await request.read()
        )
        try:
            delivery = await self._port.serve(asked, asyncio.sleep)
            await self._deliver(request, delivery.answer, delivery.fault)
        except (HTTPunkError, OSError):
            return  # the client has gone meanwhile
        except Exception:
            _logger.exception("the exchange failed: %s %s", request.method, request.target)
            await request.respond(500)

    async def _deliver(
        self, request: _Request, answer: ServerResponse | None, fault: Fault | None
    ) -> None:
        if fault is not None and fault.kind == "hang":
            await _hang(request, fault.seconds)
        if (
            answer is None
            and fault is not None
            and fault.error_code is not None
            and isinstance(request, h2.ServerRequest)
        ):
            await request.reset(fault.error_code)
        elif answer is None:
            self.transport.abort()
        elif fault is not None and fault.kind in ("truncate", "slow"):
            await self._write_in_pieces(request, answer, fault)
        elif isinstance(request, h1.ServerRequest) and not _is_plain(answer, fault):
            await self._write_raw(request, answer, fault)
        else:
            for seconds in pauses(answer, fault):  # HTTP/2 has no other form for them
                await asyncio.sleep(seconds)
            await request.respond(
                answer.status, headers=HeaderMap(_keep_headers(answer)), body=answer.content
            )

    async def _write_raw(
        self, request: h1.ServerRequest, answer: ServerResponse, fault: Fault | None
    ) -> None:
        """Write the bytes of a response that no HTTP library sends, then end the connection."""
        request.detach()
        for seconds, piece in _render(answer, fault):
            await asyncio.sleep(seconds)
            if self.transport.is_closing():
                return
            self.transport.write(piece)
        self.transport.close()

    async def _write_in_pieces(
        self, request: _Request, answer: ServerResponse, fault: Fault
    ) -> None:
        headers = HeaderMap(
            [*_keep_headers(answer), (b"content-length", b"%d" % len(answer.content))]
        )
        stream = await request.send_response(answer.status, headers=headers)
        if fault.kind == "truncate":
            await stream.send_data(answer.content[: len(answer.content) // 2])
            await stream.send_reset(int(H2Reason.INTERNAL_ERROR))  # HTTP/1.1 ends the connection
            return
        for piece in pieces(answer.content):
            await asyncio.sleep(fault.seconds or 0.0)
            await stream.send_data(piece)
        await stream.send_data(b"", end_stream=True)


async def _hang(request: _Request, seconds: float | None) -> None:
    """Wait until the time is over. Raises ConnectionError or HTTPunkError when the
    client has gone.
    """
    gone = (
        request.peer_closed() if isinstance(request, h1.ServerRequest) else request.reset_received()
    )
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(gone, seconds)
        raise ConnectionAbortedError


# Raw responses that HTTP libraries cannot send: odd header bytes, slow heads, informational
# responses.


def _is_plain(answer: ServerResponse, fault: Fault | None) -> bool:
    """Return whether an HTTP library can send the response."""
    is_special = fault is not None and fault.kind in ("trickle", "inform")
    return not is_special and all(value.isascii() for _, value in answer.headers.raw)


def _render(answer: ServerResponse, fault: Fault | None) -> Iterator[tuple[float, bytes]]:
    """Yield the pieces to write, each with the delay before it in seconds. The connection ends
    after the last piece.
    """
    seconds = 0.0 if fault is None else fault.seconds or 0.0
    headers = [
        *_keep_headers(answer),
        (b"content-length", b"%d" % len(answer.content)),
        (b"connection", b"close"),
    ]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    first, rest = _status_line(answer.status), head + b"\r\n" + answer.content
    if fault is not None and fault.kind == "trickle":
        yield 0.0, first + b"x-trickle: "
        yield from repeat((seconds, b"."), fault.count)
        yield 0.0, b"\r\n" + rest
    elif fault is not None and fault.kind == "inform":
        pause = 0.0
        for line in repeat(_status_line(fault.informs), fault.count):
            yield pause, line + b"\r\n"
            pause = seconds
        yield seconds, first + rest
    else:
        yield 0.0, first + rest


def _status_line(status: int) -> bytes:
    known = status in HTTPStatus._value2member_map_
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase if known else 'Unknown'}\r\n".encode()


def _keep_headers(answer: ServerResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers without those of a connection."""
    return [
        (name, value)
        for name, value in answer.headers.raw
        if name.lower() not in _CONNECTION_HEADERS
    ]
