# generated from openapi.yaml; do not edit
"""What a generated function returns, and how its arguments are spelled in a path, a query and headers."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast
from urllib.parse import quote, urlencode

import attrs
import msgspec
import msgspec.structs

from tinker_records import prepare

T = TypeVar("T")

BytesLike: TypeAlias = bytes | bytearray | memoryview
Scalar: TypeAlias = str | int | float | bool | datetime.datetime

#: What stays itself in a path besides letters, digits and `-._~`: what RFC 3986 allows in a segment, and `/`.
_BARE_IN_PATHS = "/!$&'()*+,;=:@"
#: Segments that are dropped or resolved on the way, so that another path would be asked.
_LOST_SEGMENTS = frozenset({"", ".", ".."})
_HEADER_ENDS = re.compile(r"[\r\n\x00]")


@attrs.frozen
class Binary:
    """A body that is encoded already: a media type and its content in pieces, which are never joined here."""

    media_type: str
    content: Sequence[BytesLike] = attrs.field(repr=False)

    @property
    def nbytes(self) -> int:
        """The length of the whole content in bytes."""
        return sum(memoryview(piece).nbytes for piece in self.content)


@attrs.frozen
class Request(Generic[T]):
    """One exchange to be made: what to send, and the type that the answer has. It sends nothing itself.

    `path` starts with `/`, is percent-encoded and goes under the base URL as it is; `query` is encoded. `reply` is None where the answer has no
    content. `headers` are only those of this operation, `accepts` its media types in order of preference. Queries, headers
    and bodies may hold secrets and stay out of the repr.
    """

    operation: str
    method: str
    path: str
    reply: type[T] | None
    query: str = attrs.field(default="", repr=False)
    headers: Mapping[str, str] = attrs.field(factory=lambda: dict[str, str](), repr=False)
    body: msgspec.Struct | Binary | None = attrs.field(default=None, repr=False)
    accepts: tuple[str, ...] = ("application/json",)


@attrs.frozen
class Operation:
    """One row of the contract: `path` is the template, `optional` says that servers may lack it.

    `reply` is what is answered at once, `result` what the future promises, where the answer is a future.
    `headers` are the declared header parameters: the name in lower case, and the type that the text of a value must fit.
    """

    operation_id: str
    method: str
    path: str
    tag: str
    body: type[msgspec.Struct] | None
    reply: type[msgspec.Struct] | None
    result: type[msgspec.Struct] | None
    optional: bool
    request_media_types: tuple[str, ...]
    response_media_types: tuple[str, ...]
    deprecated: bool
    headers: Mapping[str, Any] = attrs.field(factory=lambda: dict[str, Any]())


def read_open(
    record: msgspec.Struct,
    name: str,
    tag: str,
    members: Mapping[str, type[msgspec.Struct]],
    *,
    many: bool = False,
    nullable: bool = False,
) -> None:
    """Read the known members of an open union in a field of a new record; those with another tag stay dictionaries.

    Raises ValueError for a known member that does not fit, TypeError for a value that is not an object and for a tag that is not text.
    """
    value: Any = getattr(record, name)
    if value is None:
        if nullable:
            return
        raise TypeError("Expected `object`, got `null`")
    read = [_read(item, tag, members) for item in value] if many else _read(value, tag, members)
    msgspec.structs.force_setattr(record, name, read)


def _read(value: object, tag: str, members: Mapping[str, type[msgspec.Struct]]) -> object:
    if isinstance(value, msgspec.Struct):
        return value
    if not isinstance(value, dict):
        raise TypeError(f"Expected `object`, got `{type(value).__name__}`")
    fields = cast("dict[str, object]", value)
    chosen = fields.get(tag, "")
    if not isinstance(chosen, str):
        raise TypeError(f"Expected `str` as {tag}, got `{type(chosen).__name__}`")
    member = members.get(chosen)
    return fields if member is None else msgspec.convert(fields, prepare(member))


def path_value(name: str, value: str | int) -> str:
    """Return a value percent-encoded as it goes into a path, where `:` and `/` stay themselves.

    Raises ValueError for a value that would change which path is asked: empty, or with an empty, `.` or `..` segment. The
    same for text without a UTF-8 form.
    """
    text = str(value)
    try:
        encoded = quote(text, safe=_BARE_IN_PATHS)
    except UnicodeEncodeError:
        raise ValueError(f"{name} cannot be part of a path: {text!r} has no UTF-8 form") from None
    if not _LOST_SEGMENTS.isdisjoint(text.split("/")):
        raise ValueError(f"{name} cannot be part of a path: {text!r}")
    return encoded


def query_string(*pairs: tuple[str, Scalar | Sequence[Scalar] | None]) -> str:
    """Encode a query as a form: None is left out, a list is comma-joined, a space becomes `+`."""
    return urlencode([(name, _joined(name, value)) for name, value in pairs if value is not None])


def header_values(*pairs: tuple[str, Scalar | None]) -> dict[str, str]:
    """Spell header values; None is left out. Raises ValueError for a value that would end its header."""
    headers = {name: _spelled(name, value) for name, value in pairs if value is not None}
    for name, text in headers.items():
        if _HEADER_ENDS.search(text):
            raise ValueError(f"the header {name} cannot hold a line break")
    return headers


def _joined(name: str, value: Scalar | Sequence[Scalar]) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return _spelled(name, value)
    return ",".join(_spelled(name, item) for item in value)


def _spelled(name: str, value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return _timestamp(name, value)
    return str(value)


def _timestamp(name: str, value: datetime.datetime) -> str:
    if value.tzinfo is None:
        raise ValueError(f"{name} needs a time zone: {value.isoformat()}")
    return value.astimezone(datetime.timezone.utc).isoformat().replace("+00:00", "Z")
