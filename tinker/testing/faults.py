"""What can go wrong with one exchange, and the script that says which exchange it happens to.

    kind          what the client sees
    ------------  --------------------------------------------------------------------------------------
    status        a response with this status, headers and body instead of the server's
    drop          the connection breaks without a response
    hang          nothing more comes, though the connection stays open (for ``seconds``, if given)
    delay         the request reaches the server so much later
    truncate      the head and the first half of the body come, then the connection breaks
    corrupt       the response's body is garbage of the same length
    slow          the response's body comes in pieces, with so much time before each
    header        the response has a header whose bytes are not ASCII
    deep          the response's body is JSON that is nested a hundred thousand times
    trickle       the response's head comes byte by byte, with so much time before each
    inform        answers with a status 1xx come before the response, with so much time after each

A fault with ``applied`` happens after the server has carried the request out, one without it before.
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
    "status", "drop", "hang", "delay", "truncate", "corrupt", "slow", "header", "deep", "trickle", "inform"
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
    """Headers in any bytes; text is written in UTF-8."""
    return httpx.Headers(cast("Mapping[str, str]", given), encoding=None if isinstance(given, httpx.Headers) else "utf-8")


@attrs.frozen(kw_only=True)
class ServerResponse:
    """A complete response. Header values may be any bytes."""

    status: int
    headers: httpx.Headers = attrs.field(converter=_headers)
    content: bytes = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class Fault:
    """One thing that goes wrong. ``seconds`` and ``count`` None mean forever.

    ``answer`` is sent instead of the server's, as by a ``status`` fault. ``header`` is added to the server's response, ``body``
    takes the place of its body. ``count`` is how many bytes trickle, or how many answers with the status ``informs`` come.
    """

    kind: FaultKind
    applied: bool = False
    seconds: float | None = None
    answer: ServerResponse | None = None
    header: tuple[str, HeaderValue] | None = None
    body: bytes | None = attrs.field(default=None, repr=False)
    count: int | None = 1
    informs: int = 103

    @property
    def name(self) -> str:
        """Return a word for totals and messages."""
        status = "" if self.answer is None else f" {self.answer.status}"
        return f"{self.kind}{status}{' after' if self.applied and self.kind in ('drop', 'hang', 'status') else ''}"


def status_fault(
    status: int,
    headers: Mapping[str, HeaderValue] | None = None,
    body: object = None,
    *,
    applied: bool = False,
    kind: FaultKind = "status",
) -> Fault:
    """Return a response in place of the server's; ``body`` is bytes as they are, other JSON, or None for a detail."""
    media: dict[str, HeaderValue]
    if isinstance(body, bytes):
        content, media = body, {}
    else:
        content = msgspec.json.encode({"detail": f"scripted {status}"} if body is None else body)
        media = {"content-type": "application/json"}
    return Fault(
        kind=kind, applied=applied, answer=ServerResponse(status=status, headers={**media, **(headers or {})}, content=content)
    )


def apply_fault(answer: ServerResponse | None, fault: Fault | None) -> ServerResponse | None:
    """Return what becomes of the server's response; None is no response at all."""
    if fault is not None and (fault.answer is not None or fault.kind in ("drop", "hang")):
        return fault.answer
    if answer is None or fault is None:
        return answer
    if fault.kind == "corrupt" or fault.body is not None:
        return attrs.evolve(answer, content=garble(answer.content) if fault.body is None else fault.body)
    if fault.header is not None:
        return attrs.evolve(answer, headers=httpx.Headers([*answer.headers.raw, *_headers(dict([fault.header])).raw]))
    return answer


def pauses(answer: ServerResponse | None, fault: Fault | None) -> Iterator[float]:
    """Return how long the client waits for each piece of the response, or for each of what comes before it."""
    if fault is None or answer is None:
        return iter(())
    if fault.kind == "slow":
        return itertools.repeat(fault.seconds or 0.0, len(pieces(answer.content)))
    if fault.kind in ("trickle", "inform"):
        return repeat(fault.seconds or 0.0, fault.count)
    return iter(())


def repeat(value: T, count: int | None) -> Iterator[T]:
    """Return the value so many times; None is forever."""
    return itertools.repeat(value) if count is None else itertools.repeat(value, count)


@attrs.define
class _ScriptedFault:
    operation: str
    fault: Fault
    left: int


class OtherForms:
    """Lets a scripted refusal apply to a request, however it is written.

    A client that does not know yet what a server reads sends what was refused as protobuf once more as JSON, under the same
    number; that gets the same answer.
    """

    OPERATIONS = ("forward_backward", "forward")

    def __init__(self) -> None:
        self._refused: dict[str, tuple[int, Fault]] = {}

    def note(self, headers: Mapping[str, str], body: bytes, fault: Fault) -> None:
        """Remember what a protobuf request was answered; of each model the last."""
        if fault.answer is None or fault.answer.status < 400 or headers.get("content-type") != proto.MEDIA_TYPE:
            return
        try:
            call = proto.decode_forward_backward(body)
        except proto.ProtoError:
            return
        self._refused[call.model_id] = call.seq_id, attrs.evolve(fault, applied=False)

    def of(self, operation: str, body: bytes) -> Fault | None:
        """Return the fault of a JSON request that was refused as protobuf."""
        if operation not in self.OPERATIONS or not self._refused:
            return None
        try:
            request = msgspec.json.decode(body, type=_SequencedRequest)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        number, fault = self._refused.get(request.model_id, (None, None))
        return fault if number == request.seq_id else None


class _SequencedRequest(msgspec.Struct):
    model_id: str
    seq_id: int | None = None


def _no_fault(operation: str, number: int) -> Fault | None:
    return None


class FaultScript:
    """Which exchange meets which fault: first what was scripted, in that order, then chance. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[_ScriptedFault] = []
        self._chance: Callable[[str, int], Fault | None] = _no_fault
        self._counts: Counter[str] = Counter()

    def add(self, operation: str, fault: Fault, times: int) -> None:
        """The next ``times`` exchanges of ``operation`` (``*``: of any) meet ``fault``. ValueError for an unknown one."""
        if operation != ANY and operation not in OPERATIONS:
            close = difflib.get_close_matches(operation, OPERATIONS, 3)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ValueError(f"{operation!r} is not an operation of the contract{hint}")
        with self._lock:
            self._pending.append(_ScriptedFault(operation, fault, times))

    def by_chance(self, chance: Callable[[str, int], Fault | None] = _no_fault) -> None:
        """From now on ``chance`` is asked about every exchange without a scripted fault: its operation, its number from 0."""
        with self._lock:
            self._counts.clear()
            self._chance = chance

    def take(self, operation: str) -> Fault | None:
        """Return the fault of the exchange that begins now."""
        with self._lock:
            for scripted in self._pending:
                if scripted.left > 0 and scripted.operation in (operation, ANY):
                    scripted.left -= 1
                    return scripted.fault
            number = self._counts[operation]
            self._counts[operation] += 1
            return self._chance(operation, number)

    def list_pending(self) -> list[str]:
        """Return the scripted faults that have not happened."""
        with self._lock:
            return [f"{one.operation}: {one.fault.name}, {one.left} left" for one in self._pending if one.left > 0]

    def forget(self) -> None:
        """Forget what was scripted, and chance."""
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
    """A share ``rate`` of all exchanges fails, each of ``kinds`` as often as the others.

    The fate of the n-th exchange of an operation depends on the seed only. ``hang_seconds`` is when a hanging connection
    breaks after all (None: never), ``longest_seconds`` what a delay or a
    slow body takes at most.
    """

    def chance(operation: str, number: int) -> Fault | None:
        draw = random.Random(f"{seed}/{operation}/{number}")  # noqa: S311 - reproducible on purpose
        if draw.random() >= rate:
            return None
        kind = draw.choice(list(kinds))
        applied = kind not in ("status", "drop", "hang") or draw.random() < 0.5
        if kind == "status":
            headers = {"retry-after-ms": str(draw.randrange(1, 500))} if draw.random() < 0.3 else None
            return status_fault(draw.choice(_STATUSES), headers, applied=draw.random() < 0.3)
        if kind == "hang":
            return Fault(kind=kind, applied=applied, seconds=hang_seconds)
        if kind in ("header", "deep"):
            return _unusual(kind, draw)
        seconds = draw.uniform(0.0, longest_seconds)
        if kind in ("slow", "trickle", "inform"):
            informs = draw.choice(_INFORMATIONAL)
            return Fault(kind=kind, applied=True, seconds=seconds / SLOW_PIECES, count=SLOW_PIECES, informs=informs)
        return Fault(kind=kind, applied=applied, seconds=seconds)

    return chance


def _unusual(kind: FaultKind, draw: random.Random) -> Fault:
    """Odd header bytes or deep JSON, as often in an error as in the server's response."""
    header = ("x-chance", draw.choice(_HEADER_BYTES)) if kind == "header" else None
    body = DEEP_JSON if kind == "deep" else None
    if draw.random() < 0.5:
        return status_fault(draw.choice(_STATUSES), dict([header] if header else []), body, kind=kind)
    return Fault(kind=kind, applied=True, header=header, body=body)


def garble(content: bytes) -> bytes:
    """As many bytes, which are neither JSON nor protobuf nor text."""
    return b"\xff" * len(content)


def pieces(content: bytes, count: int = SLOW_PIECES) -> list[bytes]:
    """Return the content in at most ``count`` parts."""
    size = max(1, -(-len(content) // count))
    return [content[start : start + size] for start in range(0, len(content), size)]


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", "(.+)", re.escape(path)))


_FIXED = {(one.method, one.path): name for name, one in OPERATIONS.items() if "{" not in one.path}
# The longest first: an id may hold slashes.
_OPEN = [
    (one.method, _pattern(one.path), name)
    for name, one in sorted(OPERATIONS.items(), key=lambda row: -len(row[1].path))
    if "{" in one.path
]


def operation_of(method: str, path: str) -> str:
    """Return the operation id of a request; method and path where the contract has none."""
    found = _FIXED.get((method, path))
    if found is not None:
        return found
    for wanted, pattern, name in _OPEN:
        if wanted == method and pattern.fullmatch(path):
            return name
    return f"{method} {path}"
