"""One request on its way to a handler: its body within the limits, decompressed, and read into the
contract's records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import attrs
import msgspec
from starlette.requests import Request
from tinker_wire.runtime import Operation

from tinker._config import is_loopback
from tinker._wire import compression, proto
from tinker.local.bodies import read_body
from tinker.local.errors import APIProblem, read_field_error
from tinker.local.profiles import Profile

T = TypeVar("T", bound=msgspec.Struct)
KNOWN_FAILURE = "x-tinker-known-failure"
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
Offload: TypeAlias = Callable[[int, Callable[[], bytes]], Awaitable[bytes]]


@attrs.frozen(eq=False, kw_only=True)
class APICall:
    """One request: the operation, the path parameters, the query, the headers (lower case) and the
    decompressed body.

    ``base_url`` is where the client found this server, without a trailing slash.
    ``is_local_client`` says that the client runs on this machine, as far as the connection tells:
    through a tunnel it seems to.
    """

    operation: Operation
    path: Mapping[str, str] = attrs.field(factory=lambda: dict[str, str]())
    query: Mapping[str, str] = attrs.field(factory=lambda: dict[str, str](), repr=False)
    headers: Mapping[str, str] = attrs.field(factory=lambda: dict[str, str](), repr=False)
    base_url: str = ""
    is_local_client: bool = False
    content: bytes = attrs.field(default=b"", repr=False)

    @property
    def name(self) -> str:
        """Return the operation id."""
        return self.operation.operation_id

    @property
    def credential(self) -> bytes:
        """Return the bytes of ``X-API-Key`` as they came; empty without one."""
        return read_credential(self.headers)

    @property
    def is_proto(self) -> bool:
        """Return whether the body is protobuf."""
        return self.headers.get("content-type", "").startswith(proto.MEDIA_TYPE)

    @property
    def known_failure(self) -> int | None:
        """Return the number of the run's last failure that the client has seen; None if the client
        does not send it.
        """
        return int(self.headers[KNOWN_FAILURE]) if KNOWN_FAILURE in self.headers else None

    @property
    def accepts_proto(self) -> bool:
        """Return whether the answer may be protobuf."""
        return proto.MEDIA_TYPE in self.headers.get("accept", "")

    def read(self, kind: type[T]) -> T:
        """Decode the JSON body. Raises APIProblem 415 for protobuf, 422 when it does not fit."""
        if self.is_proto:
            raise APIProblem(415, f"{self.name} takes application/json")
        return read_body(self.content, kind)

    def apply(self, profile: Profile) -> APICall:
        """Return the call as the profile wants it read. Raises APIProblem when the profile refuses
        it.
        """
        content = (
            self.content if self.is_proto else profile.rewrite_request(self.name, self.content)
        )
        return self if content is self.content else attrs.evolve(self, content=content)

    # The query

    def query_integer(self, name: str, default: int) -> int:
        """Return an integer of the query, at least 0. Raises APIProblem 422 for anything else."""
        text = self.query.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 400):
            raise query_problem(name, f"{text!r} is not an integer of at least 0")
        return int(text)

    def query_choice(self, name: str, known: Sequence[str]) -> str:
        """Return one of the ``known`` words of the query, by default the first. Raises APIProblem
        422 for another one.
        """
        text = self.query.get(name, known[0])
        if text not in known:
            raise query_problem(name, f"{text!r} is not one of {', '.join(known)}")
        return text

    def check_scope(self) -> None:
        """Raise APIProblem 422 for an unknown access_scope of the query. One user owns everything,
        so each means all.
        """
        self.query_choice("access_scope", ("owned", "accessible"))


def read_credential(headers: Mapping[str, str]) -> bytes:
    """Return the bytes of ``X-API-Key`` as they came; empty without one."""
    return headers.get("x-api-key", "").encode("latin-1")


def query_problem(name: str, fault: str) -> APIProblem:
    """Make a 422 that names one parameter of the query."""
    return APIProblem(422, [{"loc": ["query", name], "msg": fault, "type": "value_error"}])


async def receive(request: Request, operation: Operation, limit: int, offload: Offload) -> APICall:
    """Read a request.

    APIProblem 422 for a header that is not of its declared type, 413 beyond ``limit`` bytes, also
    after decompression, 415 for an unknown encoding.
    """
    headers = dict(reversed(request.headers.items()))  # where one comes twice, the first counts
    _check_headers(operation, headers)
    pieces = [piece async for piece in read_pieces(request, limit, _size_problem(limit))]
    content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding == "zstd":
        squeezed = content
        content = await offload(limit, lambda: _decompress(squeezed, limit))
    elif encoding != "identity":
        raise APIProblem(
            415, f"Content-Encoding {encoding!r} is not supported; send the body plain or as zstd"
        )
    return APICall(
        operation=operation,
        path={key: str(value) for key, value in request.path_params.items()},
        query=dict(request.query_params),
        headers=headers,
        base_url=_find_base_url(request, headers),
        is_local_client=_is_local_client(request, headers),
        content=content,
    )


def _check_headers(operation: Operation, headers: Mapping[str, str]) -> None:
    for name, kind in operation.headers.items():
        if name in headers:
            try:
                msgspec.convert(headers[name], kind, strict=False)
            except msgspec.ValidationError as error:
                fault = read_field_error(error)
                raise APIProblem(422, [fault._replace(place=(name,)).describe("header")]) from None


def _find_base_url(request: Request, headers: Mapping[str, str]) -> str:
    """Return the URL by which the client found this server; behind a proxy that keeps the Host
    header, the proxy's.
    """
    root: str = request.scope.get("root_path", "")
    return f"{request.scope['scheme']}://{headers.get('host', '')}{root}"


def _is_local_client(request: Request, headers: Mapping[str, str]) -> bool:
    """Return whether the request comes from this process or this machine, and not
    through a proxy.
    """
    forwarded = any(name in headers for name in _PROXY_HEADERS)
    return not forwarded and request.client is not None and is_loopback(request.client.host)


async def read_pieces(request: Request, limit: int, problem: APIProblem) -> AsyncGenerator[bytes]:
    """Yield the body as it comes. Raises the problem as soon as it is known to have more than
    ``limit`` bytes.
    """
    declared, nbytes = request.headers.get("content-length", ""), 0
    if declared.isdigit() and int(declared) > limit:
        raise problem
    async for piece in request.stream():
        nbytes += len(piece)
        if nbytes > limit:
            raise problem
        yield piece


def _decompress(content: bytes, limit: int) -> bytes:
    try:
        return compression.decompress(content, limit)
    except ImportError:
        raise APIProblem(
            415, "this server has no zstd; install the zstandard package or send the body plain"
        ) from None
    except compression.BodyTooLargeError:
        raise _size_problem(limit) from None
    except ValueError as error:
        raise APIProblem(422, str(error)) from error


def _size_problem(limit: int) -> APIProblem:
    return APIProblem(413, f"the body is larger than {limit} bytes (max_request_bytes)")
