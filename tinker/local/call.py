"""One request on its way to a handler: its body within the limits, decompressed, and read into the contract's records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, TypeVar

import attrs
import msgspec
from starlette.requests import Request
from tinker_wire.runtime import Operation

from tinker._wire import proto
from tinker.local import legacy
from tinker.local.problem import Problem

T = TypeVar("T", bound=msgspec.Struct)
Offload: TypeAlias = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]


@attrs.frozen(eq=False)
class Call:
    """What was asked: the operation, the parts of the path, the headers (lower case) and the plain body."""

    operation: Operation
    path: Mapping[str, str]
    headers: Mapping[str, str]
    content: bytes = attrs.field(repr=False)

    @property
    def is_proto(self) -> bool:
        """Whether the body is protobuf."""
        return self.headers.get("content-type", "").startswith(proto.MEDIA_TYPE)

    @property
    def accepts_proto(self) -> bool:
        """Whether the answer may be protobuf."""
        return proto.MEDIA_TYPE in self.headers.get("accept", "")

    def read(self, kind: type[T]) -> T:
        """The JSON body. Problem 415 for protobuf, 422 when it does not fit."""
        if self.is_proto:
            raise Problem(415, f"{self.operation.operation_id} takes application/json")
        return legacy.read(self.content, kind)


async def receive(request: Request, operation: Operation, limit: int, offload: Offload) -> Call:
    """Read a request. Problem 413 beyond ``limit`` bytes, also after decompression; 415 for an unknown encoding."""
    content = await _content(request, limit)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "zstd":
        squeezed = content
        content = await offload(limit, lambda: _decompressed(squeezed, limit))
    elif encoding != "identity":
        raise Problem(415, f"Content-Encoding {encoding!r} is not supported; send the body plain or as zstd")
    return Call(operation, {key: str(value) for key, value in request.path_params.items()}, request.headers, content)


async def _content(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompressed(content: bytes, limit: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise Problem(415, "this server has no zstd; install the zstandard package or send the body plain") from None
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)
        plain = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise Problem(422, f"the body is not zstd: {error}") from error
    if len(plain) > limit:
        raise _too_large(limit)
    return plain


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit} bytes (max_request_bytes)")
