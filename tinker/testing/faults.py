"""Faults of exchanges, and the script that assigns them to exchanges.

    kind          what the client sees
    ------------  ----------------------------------------------------------------------------------
    status        a response with this status, headers and body instead of the server's
    drop          the connection breaks without a response, or the stream of HTTP/2 is reset
    hang          no more data arrives, but the connection stays open (for ``seconds``, if given)
    delay         the request reaches the server after ``seconds``
    truncate      the head and the first half of the body arrive, then the connection (HTTP/2: the
                  stream) breaks
    corrupt       the response body is garbage of the same length, or some fields of protobuf are
                  left of it, or nothing
    slow          the response body arrives in pieces, each after ``seconds``
    header        the response has a header whose bytes are not ASCII
    deep          the response body is JSON nested a hundred thousand levels deep
    trickle       the response head arrives byte by byte, each after ``seconds``
    inform        1xx responses arrive before the response, each followed by a pause of ``seconds``

A fault with ``applied`` happens after the server has executed the request; otherwise it happens
before.
"""

from __future__ import annotations

import difflib
import itertools
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar, cast, get_args

import attrs
import httpx
import msgspec
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
