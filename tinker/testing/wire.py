"""Raw responses that HTTP libraries cannot send: odd header bytes, slow heads, informational responses."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from tinker.testing.faults import Fault, ServerResponse, repeat

_OF_THE_CONNECTION = frozenset((b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"date", b"server"))


def is_plain(answer: ServerResponse, fault: Fault | None) -> bool:
    """Return whether an HTTP library can send the response."""
    is_special = fault is not None and fault.kind in ("trickle", "inform")
    return not is_special and all(value.isascii() for _, value in answer.headers.raw)


def render(answer: ServerResponse, fault: Fault | None) -> Iterator[tuple[float, bytes]]:
    """Yield the pieces to write, each with the delay before it in seconds. The connection ends after the last piece."""
    seconds = 0.0 if fault is None else fault.seconds or 0.0
    first, rest = _status_line(answer.status), _headers(answer) + answer.content
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


def keep_headers(answer: ServerResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers without those of a connection."""
    return [(name, value) for name, value in answer.headers.raw if name.lower() not in _OF_THE_CONNECTION]


def _headers(answer: ServerResponse) -> bytes:
    """Return the headers and the empty line."""
    lines = [*keep_headers(answer), (b"content-length", str(len(answer.content)).encode()), (b"connection", b"close")]
    return b"".join(name + b": " + value + b"\r\n" for name, value in lines) + b"\r\n"
