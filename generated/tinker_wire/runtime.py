# generated from openapi.yaml; do not edit
"""What a generated function returns, and how its arguments are spelled in a path, a query and headers."""

from __future__ import annotations

import datetime
import io
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeAlias, TypeVar, cast, overload
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
        if isinstance(self.content, FormPieces):
            return self.content.nbytes
        return sum(memoryview(piece).nbytes for piece in self.content)


@attrs.frozen
class FilePart:
    """A file of a form: its bytes, its path, or a file object open for reading bytes; and what the server is told about it.

    `filename` None is the name of the path or file, or `upload`.
    """

    content: BytesLike | os.PathLike[str] | BinaryIO = attrs.field(repr=False)
    filename: str | None = None
    media_type: str = "application/octet-stream"


_Content: TypeAlias = BytesLike | os.PathLike[str] | BinaryIO
Upload: TypeAlias = _Content | FilePart | tuple[str, _Content] | tuple[str, _Content, str]


class FormPieces(Sequence[bytes | memoryview]):
    """The pieces of a form. Files are read as their pieces are asked for, so they are never in memory as a whole.

    The pieces can be asked for again, as for a second attempt. OSError when a file has become shorter meanwhile.
    """

    CHUNK_NBYTES = 1 << 20

    def __init__(self, segments: Sequence[bytes | memoryview | Stored]) -> None:
        self._pieces: list[bytes | memoryview | Stored] = []
        for segment in segments:
            self._pieces += segment.cut(self.CHUNK_NBYTES) if isinstance(segment, Stored) else [segment]
        self.nbytes = sum(
            piece.nbytes if isinstance(piece, (Stored, memoryview)) else len(piece) for piece in self._pieces
        )

    def __len__(self) -> int:
        return len(self._pieces)

    @overload
    def __getitem__(self, index: int) -> bytes | memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes | memoryview]: ...

    def __getitem__(self, index: int | slice) -> bytes | memoryview | Sequence[bytes | memoryview]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        piece = self._pieces[index]
        return piece.read() if isinstance(piece, Stored) else piece

    def __iter__(self) -> Iterator[bytes | memoryview]:
        return (self[index] for index in range(len(self)))


class Stored(msgspec.Struct, frozen=True):
    """Some bytes of a file: where they begin and how many they are."""

    source: os.PathLike[str] | BinaryIO
    offset: int
    nbytes: int

    def cut(self, most: int) -> list[Stored]:
        """Cut this into pieces of at most so many bytes."""
        starts = range(0, self.nbytes, most)
        return [Stored(self.source, self.offset + start, min(most, self.nbytes - start)) for start in starts]

    def read(self) -> bytes:
        """Read the bytes. Raises OSError when they are not all there any more."""
        if isinstance(self.source, os.PathLike):
            with open(self.source, "rb") as file:
                return self._read(file)
        return self._read(self.source)

    def _read(self, file: BinaryIO) -> bytes:
        file.seek(self.offset)
        found = file.read(self.nbytes)
        if len(found) != self.nbytes:
            raise OSError(f"{_filename(self.source)} became shorter while it was sent")
        return found


class Request(msgspec.Struct, Generic[T], frozen=True):
    """One exchange to be made: what to send, and the type that the answer has. It sends nothing itself.

    `path` starts with `/`, is percent-encoded and goes under the base URL as it is; `query` is encoded. `reply` is None where the answer has no
    content, and `bytes` where that is not JSON. `headers` are only those of this operation, `accepts` its media types in order of preference.
    `extra_headers` and `timeout_seconds` are the caller's, see :meth:`with_options`. Queries, headers and bodies may hold secrets and stay
    out of the repr.
    """

    operation: str
    method: str
    path: str
    reply: type[T] | None
    query: str = ""
    headers: Mapping[str, str] = msgspec.field(default_factory=lambda: dict[str, str]())
    body: msgspec.Struct | Binary | None = None
    accepts: tuple[str, ...] = ("application/json",)
    extra_headers: Mapping[str, str] | None = None
    timeout_seconds: float | None = None

    def with_options(self, extra_headers: Mapping[str, str] | None, timeout: float | None) -> Request[T]:
        """Return the request with headers that replace others of the same name, and a limit for the whole call in seconds."""
        if extra_headers is not None:
            if not isinstance(extra_headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"extra_headers must be a mapping of strings to strings, got {type(extra_headers).__name__}"
                )
            extra_headers = dict(extra_headers)
        return msgspec.structs.replace(self, extra_headers=extra_headers, timeout_seconds=timeout)

    def __repr__(self) -> str:
        """Show what holds no secret."""
        shown = ("operation", "method", "path", "reply", "accepts")
        return f"Request({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Operation(msgspec.Struct, frozen=True):
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
    headers: Mapping[str, Any] = msgspec.field(default_factory=lambda: dict[str, Any]())


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
    headers: dict[str, str] = {}
    for name, value in pairs:
        if value is not None:
            text = headers[name] = value if isinstance(value, str) else _spelled(name, value)
            if not text.isprintable() and _HEADER_ENDS.search(text):
                raise ValueError(f"the header {name} cannot hold a line break")
    return headers


def form_body(record: msgspec.Struct) -> Binary:
    """Encode a record as `multipart/form-data`; nothing of its files is read yet, but of those that cannot be read twice.

    A field that is None is left out, a list is one part for each item, text and numbers are text, records and maps are JSON.
    Raises OSError for a file that is not there, TypeError for a value that is no file where one is needed, and ValueError for a media
    type with a line break.
    """
    boundary = secrets.token_hex(16)
    segments: list[bytes | memoryview | Stored] = []
    for name, attribute in zip(record.__struct_encode_fields__, record.__struct_fields__):
        value: object = getattr(record, attribute)
        for one in _items(value):
            segments += [f"--{boundary}\r\n".encode(), *_part(name, one), b"\r\n"]
    segments.append(f"--{boundary}--\r\n".encode())
    return Binary(f"multipart/form-data; boundary={boundary}", FormPieces(_merge(segments)))


def _items(value: object) -> Sequence[object]:
    if _is_named_file(value):
        return [value]
    if isinstance(value, (list, tuple)):
        return cast("Sequence[object]", value)
    return [] if value is None else [value]


def _is_named_file(value: object) -> bool:
    """Return whether a value is `(name, content)` or `(name, content, media type)`, as httpx takes files."""
    if not isinstance(value, tuple):
        return False
    items = cast("tuple[object, ...]", value)
    return len(items) in (2, 3) and isinstance(items[0], str) and not isinstance(items[1], (str, int, float))


def _file(value: object) -> FilePart:
    if _is_named_file(value):
        name, *others = cast("Any", value)
        return FilePart(others[0], name, *others[1:])
    return value if isinstance(value, FilePart) else FilePart(cast("Any", value))


def _part(name: str, value: object) -> list[bytes | memoryview | Stored]:
    """Return the headers and the content of one part."""
    disposition = f'Content-Disposition: form-data; name="{_quoted(name)}"'
    if isinstance(value, (str, int, float, datetime.datetime)):
        return [f"{disposition}\r\n\r\n{_spelled(name, value)}".encode()]
    if isinstance(value, (msgspec.Struct, dict)):
        return [f"{disposition}\r\nContent-Type: application/json\r\n\r\n".encode(), msgspec.json.encode(value)]
    file = _file(value)
    if _HEADER_ENDS.search(file.media_type):
        raise ValueError(f"the media type of {name} cannot hold a line break")
    content = _content(name, file.content)
    source = content.source if isinstance(content, Stored) else file.content
    filename = _quoted(_filename(source) if file.filename is None else file.filename)
    head = f'{disposition}; filename="{filename}"\r\nContent-Type: {file.media_type}\r\n\r\n'
    return [head.encode(), content]


def _content(name: str, content: object) -> bytes | memoryview | Stored:
    if isinstance(content, (bytes, bytearray, memoryview)):
        return memoryview(cast("bytes", content)).cast("B")
    if isinstance(content, os.PathLike):
        path = Path(cast("os.PathLike[str]", content))
        return Stored(path, 0, path.stat().st_size)
    if not hasattr(content, "read"):
        raise TypeError(f"{name} must be bytes, a path, a file object or a FilePart, got {type(content).__name__}")
    file = cast("BinaryIO", content)
    if not file.seekable():
        return file.read()
    offset = file.tell()
    return Stored(file, offset, file.seek(0, io.SEEK_END) - offset)


def _filename(content: object) -> str:
    name = str(content) if isinstance(content, Path) else getattr(content, "name", None)
    return Path(name).name if isinstance(name, str) else "upload"


def _quoted(text: str) -> str:
    """Return text as it stands in quotes in the head of a part, as browsers write it."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _merge(segments: Sequence[bytes | memoryview | Stored]) -> list[bytes | memoryview | Stored]:
    """Join what is small and stands side by side."""
    merged: list[bytes | memoryview | Stored] = []
    for segment in segments:
        if isinstance(segment, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += segment
        else:
            merged.append(segment)
    return merged


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
