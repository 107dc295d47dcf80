"""One request on its way to a handler: its body, the profile, and errors as answers."""

from __future__ import annotations

import functools
import logging
import re
import uuid
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import attrs
import msgspec
from msgspec import inspect
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from tinker_wire.models import ErrorCode, ErrorResponse, JSONValue
from tinker_wire.runtime import Operation

from tinker import _wire
from tinker._basics.config import is_loopback
from tinker._wire import json, proto
from tinker.types.results import ForwardBackwardOutput
from tinker_records import find_meant, prepare

#: The code of a refusal that has none of its own.
CODES: dict[int, ErrorCode] = {
    400: "invalid_request",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    410: "gone",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_body",
    425: "too_early",
    429: "too_many_requests",
    500: "internal",
    501: "not_implemented",
    503: "unavailable",
}
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
log: logging.Logger = logging.getLogger("tinker.local")


class APIProblem(Exception):
    """The request is refused: ``status``, ``detail`` and ``code`` of the answer's body, and headers
    to go with it.
    """

    def __init__(
        self,
        status: int,
        detail: JSONValue,
        headers: Mapping[str, str] | None = None,
        code: ErrorCode | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code: ErrorCode | None = code or CODES.get(status)
        self.headers: Mapping[str, str] = headers or {}


def error_response(problem: APIProblem) -> Response:
    """Return the answer to a refused request in the form of the contract."""
    body = json.encode(ErrorResponse(detail=problem.detail, code=problem.code))
    return Response(body, problem.status, dict(problem.headers), json.MEDIA_TYPE)


def answer_errors(
    endpoint: Endpoint, refuse: Callable[[APIProblem], Response] = error_response
) -> Endpoint:
    """Return the endpoint with an answer to every error; ``refuse`` makes it from an APIProblem."""

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except APIProblem as problem:
            return refuse(problem)
        except RecursionError:
            return refuse(APIProblem(422, "the body is nested too deeply"))
        except ClientDisconnect:
            return Response(status_code=499)  # the client has disconnected
        except Exception as error:
            log.exception(
                "%s %s failed",
                request.method,
                getattr(request.scope.get("route"), "path", "a request"),
            )
            return refuse(APIProblem(500, f"{type(error).__name__}: {error}"))

    return respond


def make_not_found(code: ErrorCode, name: str, hint: str = "") -> APIProblem:
    """Make a 404 that names the missing object."""
    what = code.removesuffix("_not_found").replace("_", " ")
    return APIProblem(404, f"{what} {name!r} was not found on this server{hint}", code=code)


def conflict(detail: str, code: ErrorCode = "conflict") -> APIProblem:
    """Make a 409 that asks clients not to retry, because waiting does not help."""
    return APIProblem(409, detail, {"x-should-retry": "false"}, code)


def unprocessable(
    field: str, fault: str, kind: str = "value_error", *, source: str = "body"
) -> APIProblem:
    """Make a 422 that names one field of the body, or of another source."""
    return APIProblem(422, [FieldError((*field.split("."),), fault, kind).describe(source)])


# The forms of msgspec's messages.
_PLACED = re.compile(r"(?P<message>.*) - at (?:`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_PATH_PART = re.compile(r"[^.\[\]]+")
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`")
_WRONG = re.compile(
    r"Expected `(?P<wanted>[^`]*)`(?:, got `(?P<found>[^`]*)`)?(?: (?P<limit>.*))?", re.DOTALL
)
_LIMIT = re.compile(r"(?:of (?P<what>length ))?(?P<sign>[<>]=?) (?P<bound>\S+)")
_UNKNOWN = re.compile(r"Invalid (?:enum )?value (?P<value>.*)", re.DOTALL)

_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
    "datetime": "a time",
}
_MISSING_SENTENCE = "the field is missing"
_LIMITS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


class FieldError(NamedTuple):
    """A validation error: the place, a sentence without its subject, and the kind."""

    place: tuple[str | int, ...]
    sentence: str
    kind: str = "value_error"

    def describe(self, source: str) -> dict[str, JSONValue]:
        """Return the entry of a 422 body; ``source`` is where it was found,
        ``body`` or ``header``.
        """
        return {"loc": [source, *self.place], "msg": self.sentence, "type": self.kind}


def read_field_error(error: Exception) -> FieldError:
    """Convert a validation error of msgspec."""
    message, path = str(error), ""
    if placed := _PLACED.fullmatch(message):
        message, path = placed["message"], placed["path"]
    place = tuple(int(part) if part.isdigit() else part for part in _PATH_PART.findall(path))
    if found := _MISSING.fullmatch(message):
        return FieldError((*place, found["field"]), _MISSING_SENTENCE, "missing")
    if found := _UNKNOWN.fullmatch(message):
        return FieldError(place, f"the value {found['value']} is unknown", "enum")
    if found := _WRONG.fullmatch(message):
        kinds = (_WORDS.get(kind, kind) for kind in found["wanted"].split(" | "))
        sentence = f"must be {' or '.join(kinds)}{_describe_limit(found['limit'])}"
        if (got := found["found"]) is None:
            return FieldError(place, sentence)
        return FieldError(place, f"{sentence}, not {_WORDS.get(got, got)}", "type_error")
    return FieldError(place, message)


def find_field_errors(value: object, kind: type[msgspec.Struct]) -> list[FieldError]:
    """Find the errors against the record ``kind``: each missing field, and the first error in every
    other field.
    """
    if not isinstance(value, dict):
        return [read_field_error(error) for error in _try(value, kind)]
    found: list[FieldError] = []
    fields = cast("dict[str, object]", value)
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name in fields:
            faults = map(read_field_error, _try(fields[name], field.type))
            found += [fault._replace(place=(name, *fault.place)) for fault in faults]
        elif field.required:
            found.append(FieldError((name,), _MISSING_SENTENCE, "missing"))
    return found


def _try(value: object, kind: type[Any]) -> list[msgspec.ValidationError]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return [error]
    return []


def _describe_limit(limit: str | None) -> str:
    """Return a limit in words, such as `` of at least 1``; empty without one."""
    found = _LIMIT.fullmatch(limit or "")
    if found is None:
        return f" {limit}" if limit else ""
    return f" of {found['what'] or ''}{_LIMITS[found['sign']]} {found['bound']}"


def format_place(place: Sequence[str | int]) -> str:
    """Return a place as people write it.

    >>> format_place(["messages", 0, "role"])
    'messages[0].role'
    """
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in place
    ).removeprefix(".")


class _FieldErrorEntry(msgspec.Struct):
    loc: list[str | int]
    msg: str


def describe_field_errors(detail: object) -> tuple[str, str | None] | None:
    """Return the entries of a 422 body as one line, and the first place within the body; None for
    anything else.
    """
    try:
        entries = msgspec.convert(detail, list[_FieldErrorEntry])
    except msgspec.ValidationError:
        return None
    places = [format_place(entry.loc[1:]) for entry in entries]
    lines = [f"{place or 'the body'}: {entry.msg}" for place, entry in zip(places, entries)]
    return "; ".join(lines), next(filter(None, places), None)


# has the profiles of other servers; loaded when one is named
OTHER_SERVERS = "tinker.testing.servers"
JSONObject: TypeAlias = dict[str, Any]
Decoded = TypeVar("Decoded")
#: A body as it came, as it shall be read; raises APIProblem to refuse it.
Rewrite: TypeAlias = Callable[[JSONObject], JSONObject]
#: The body of a request (empty where there is none) and the answer to it, as the answer shall be
#: sent.
Reshape: TypeAlias = Callable[[JSONObject, JSONObject], JSONObject]


@attrs.frozen(kw_only=True)
class IdScheme:
    """How ids are made. ``by_number`` False means that a client's number of a model or sampler
    identifies nothing.
    """

    session: Callable[[], str] = lambda: str(uuid.uuid4())
    model: Callable[[str, int], str] = lambda session_id, number: f"{session_id}:train:{number}"
    sampler: Callable[[str, int], str] = lambda session_id, number: f"{session_id}:sample:{number}"
    by_number: bool = True


def _keep_output(output: ForwardBackwardOutput, *_: object) -> ForwardBackwardOutput:
    return output


@attrs.frozen(kw_only=True)
class Profile:
    """One server as its clients see it.

    ``hold_seconds``: how long a poll is held by default. ``absent``: operations that are not there,
    with the status of the answer. ``protobuf``: whether it is read and written.
    ``protobuf_problem``: the answer to protobuf where it is not read. ``announces_size``: whether
    large results are announced by size. ``pending_status``: 200 says "try again" to clients that
    know it; 408 never does. ``pending_body``: the body of such a 408, made from the server's own.
    ``failed_status``: of the poll of a failed request; 200 sends category and text.
    ``numbered_requests``: whether request ids are integers. ``ordered``: whether a model's requests
    run in the order of their numbers, or of their arrival. ``loads_first_only``: whether
    ``load_weights`` must be the first request of its model.

    ``requests`` and ``answers`` change JSON bodies by operation; ``results`` change those of
    ``retrieve_future`` by the result's type. ``check_loss`` refuses a loss (name, options, data);
    ``loss_output`` changes what was computed for one (output, examples, name, options).
    ``reused_number`` refuses a number that was used before; ``rewrite_problem`` changes any
    refusal.
    """

    name: str
    hold_seconds: float = 30.0
    absent: Mapping[str, int] = attrs.field(factory=lambda: dict[str, int]())
    ids: IdScheme = IdScheme()
    numbered_requests: bool = False
    protobuf: bool = True
    protobuf_problem: APIProblem = attrs.field(
        factory=lambda: APIProblem(415, "this server reads application/json only")
    )
    announces_size: bool = True
    pending_status: int = 200
    pending_body: Rewrite = lambda body: body
    failed_status: int = 200
    ordered: bool = True
    loads_first_only: bool = False
    requests: Mapping[str, Rewrite] = attrs.field(factory=lambda: dict[str, Rewrite]())
    answers: Mapping[str, Reshape] = attrs.field(factory=lambda: dict[str, Reshape]())
    results: Mapping[type, Rewrite] = attrs.field(factory=lambda: dict[type, Rewrite]())
    check_loss: Callable[[str, Mapping[str, float | str], Sequence[Any]], None] = (
        lambda name, options, data: None
    )
    loss_output: Callable[..., ForwardBackwardOutput] = _keep_output
    reused_number: Callable[[str], APIProblem] = lambda key: conflict(
        f"request {key!r} was submitted before with another body; use a new seq_id", "seq_id_used"
    )
    rewrite_problem: Callable[[APIProblem], APIProblem] = lambda problem: problem

    def __str__(self) -> str:
        return self.name

    @property
    def can_repeat(self) -> bool:
        """Return whether a repeated request is recognized by its client's number."""
        return self.ids.by_number and self.ordered and not self.numbered_requests

    def rewrite_request(self, operation: str, content: bytes) -> bytes:
        """Return a JSON body as the server reads it. Raises APIProblem when the
        profile refuses it.
        """
        return _edit(content, self.requests.get(operation))

    def rewrite_answer(self, operation: str, asked: bytes, answer: bytes) -> bytes:
        """Return a JSON answer as the client gets it."""
        if (reshape := self.answers.get(operation)) is None:
            return answer
        return _edit(answer, lambda body: reshape(_read_as(JSONObject, asked) or {}, body))

    def rewrite_result(self, kind: type, content: bytes) -> bytes:
        """Return a result in JSON as the client gets it."""
        return _edit(content, self.results.get(kind))


def _edit(content: bytes, edit: Rewrite | None) -> bytes:
    """Edit a JSON object; leave anything else for the reader to refuse."""
    if edit is None or (body := _read_as(JSONObject, content)) is None:
        return content
    return msgspec.json.encode(edit(body))


def _read_as(kind: type[Decoded], content: bytes | msgspec.Raw) -> Decoded | None:
    """Return JSON of this type; None for anything else."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


OFFICIAL = Profile(name="official")


def find_profile(wanted: str | Profile) -> Profile:
    """Return the profile of that name. Raises ValueError, naming the known ones,
    for another name.
    """
    if isinstance(wanted, Profile):
        return wanted
    if wanted == OFFICIAL.name:
        return OFFICIAL
    profiles: Mapping[str, Profile] = import_module(OTHER_SERVERS).PROFILES
    if wanted not in profiles:
        raise ValueError(f"there is no profile {wanted!r}; the profiles are {', '.join(profiles)}")
    return profiles[wanted]


T = TypeVar("T", bound=msgspec.Struct)


def read_body(content: bytes, kind: type[T]) -> T:
    """Read a JSON body as the record ``kind``, in today's or an older form. Raises APIProblem 422,
    naming the field.
    """
    try:
        return msgspec.json.decode(content, type=prepare(kind))
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        raise _json_problem(error) from error
    try:
        value = msgspec.json.decode(content)
    except msgspec.DecodeError as error:  # its beginning was read as a value of another type
        raise _json_problem(error) from error
    filled = _fill(value, _type_of(kind))
    try:
        return msgspec.convert(filled, kind)
    except msgspec.ValidationError as error:
        faults = find_field_errors(filled, kind) or [read_field_error(error)]
        raise APIProblem(422, [fault.describe("body") for fault in faults]) from error


def _json_problem(error: msgspec.DecodeError) -> APIProblem:
    return APIProblem(422, [FieldError((), f"not JSON: {error}", "json_invalid").describe("body")])


@functools.cache
def _type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _fill(value: Any, kind: inspect.Type) -> Any:
    """Return the value without nulls that stand for defaults, and with the tags of its unions."""
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        return _fill_record(cast("dict[str, Any]", value), kind)
    if isinstance(kind, inspect.UnionType):
        return _fill_union(value, kind)
    if isinstance(kind, inspect.CollectionType) and isinstance(value, list):
        return [_fill(item, kind.item_type) for item in cast("Sequence[Any]", value)]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {
            key: _fill(item, kind.value_type) for key, item in cast("dict[str, Any]", value).items()
        }
    return value


def _fill_record(value: dict[str, Any], kind: inspect.StructType) -> dict[str, Any]:
    known = {field.encode_name: field for field in kind.fields}
    return {
        key: _fill(item, known[key].type) if key in known else item
        for key, item in value.items()
        if item is not None or key not in known or known[key].required
    }


def _fill_union(value: object, kind: inspect.UnionType) -> Any:
    if isinstance(value, dict):
        record = cast("dict[str, Any]", value)
        members = _find_members(
            record, [member for member in kind.types if isinstance(member, inspect.StructType)]
        )
        if members:
            return next(
                (
                    _add_tag(record, member)
                    for member in members
                    if not _try(_add_tag(record, member), prepare(member.cls))
                ),
                _add_tag(record, members[0]),
            )
    inner = [
        member
        for member in kind.types
        if isinstance(member, (inspect.CollectionType, inspect.DictType))
    ]
    return _fill(cast("Any", value), inner[0]) if inner else cast("Any", value)


def _add_tag(record: dict[str, Any], member: inspect.StructType) -> dict[str, Any]:
    filled = _fill_record(record, member)
    return filled if member.tag_field is None else {member.tag_field: member.tag, **filled}


def _find_members(
    record: dict[str, Any], members: list[inspect.StructType]
) -> list[inspect.StructType]:
    """Find the member of that tag; without a tag those whose required fields are there, most of
    them first.
    """
    named = [m for m in members if m.tag_field is not None and record.get(m.tag_field) == m.tag]
    if named:
        return named
    required = {id(m): {field.encode_name for field in m.fields if field.required} for m in members}
    fitting = [member for member in members if required[id(member)] <= record.keys()]
    return sorted(fitting, key=lambda member: len(required[id(member)]), reverse=True)


HEADER = "x-tinker-unread-fields"
TAG = "type"
MAX_ITEMS = 8  # of a list are looked at: items of one list are alike
MAX_NAMED = 20
MAX_NAME_LENGTH = 100
MAX_WARNINGS = 1000  # one for each field of each operation
_UNSAFE = re.compile(r"[^\w.\[\]-]", re.ASCII)
_Members = tuple[type[msgspec.Struct], ...]
_Unread = tuple[str, Collection[str]]  # a field, and the known names at its place


class UnknownFields:
    """The treatment of unknown fields; ``strict`` refuses them."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._warned: set[tuple[str, str]] = set()

    def check(
        self, name: str, content: bytes, kind: type[msgspec.Struct] | None
    ) -> Mapping[str, str]:
        """Return the headers that name unread fields of a body for ``kind``. Raises APIProblem 422
        where that is strict.
        """
        found = {} if kind is None or not content else find_unknown_fields(content, kind)
        if not found:
            return {}
        if self._strict:
            faults = (
                FieldError((*name.split("."),), f"unknown field{_ask(meant)}", "extra_forbidden")
                for name, meant in found.items()
            )
            raise APIProblem(422, [fault.describe("body") for fault in faults])
        for field, meant in found.items():
            if (name, field) not in self._warned and len(self._warned) < MAX_WARNINGS:
                self._warned.add((name, field))
                log.warning("%s: unknown field %s was ignored%s", name, field, _ask(meant))
        return {HEADER: ", ".join(found)}


def _ask(meant: str | None) -> str:
    return "" if meant is None else f"; did you mean {meant!r}?"


def find_unknown_fields(content: bytes, kind: type[msgspec.Struct]) -> dict[str, str | None]:
    """Find the fields, such as ``sampling_params.topp``, that a record has no place for, each with
    the name it may mean.

    A body that is no object has none.
    """
    found = list(dict(_find_in_object(content, (kind,))).items())[:MAX_NAMED]
    return {
        _UNSAFE.sub("?", field)[:MAX_NAME_LENGTH]: find_meant(
            field.rpartition(".")[2][:MAX_NAME_LENGTH], known
        )
        for field, known in found
    }


@functools.cache
def _fields(
    records: _Members,
) -> tuple[Mapping[str, Sequence[tuple[bool, _Members]]], Collection[str | None]]:
    """Return the fields of these records by name, and the fields that only tell records apart.

    Of each field, the records that its value may be, or where True that the items of its list may
    be.
    """
    fields: dict[str, list[tuple[bool, _Members]]] = {}
    tags: set[str | None] = {TAG}
    for record in map(_type_of, records):
        assert isinstance(record, inspect.StructType)
        tags.add(record.tag_field)
        for field in record.fields:
            inside = [
                (False, _records(field.type)),
                *((True, _records(kind)) for kind in _items(field.type)),
            ]
            fields.setdefault(field.encode_name, []).extend(one for one in inside if one[1])
    return fields, tags


def _records(kind: inspect.Type) -> _Members:
    """Return the records that a value of this type may be; none for a type that also takes a map
    with any keys.
    """
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if any(isinstance(member, (inspect.DictType, inspect.AnyType)) for member in members):
        return ()
    return tuple(member.cls for member in members if isinstance(member, inspect.StructType))


def _items(kind: inspect.Type) -> Iterator[inspect.Type]:
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return (one.item_type for one in members if isinstance(one, inspect.CollectionType))


def _find_in_object(content: bytes | msgspec.Raw, records: _Members) -> Iterator[_Unread]:
    fields, tags = _fields(records)
    for name, value in (_read_as(dict[str, msgspec.Raw], content) or {}).items():
        if name in fields:
            for is_list, inside in fields[name]:
                items = (_read_as(list[msgspec.Raw], value) or [])[:MAX_ITEMS] if is_list else None
                for part in [value] if items is None else items:
                    yield from (
                        (f"{name}.{inner}", known) for inner, known in _find_in_object(part, inside)
                    )
        elif name not in tags and bytes(value) != b"null":
            yield name or "?", fields


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
            raise unprocessable(name, f"{text!r} is not an integer of at least 0", source="query")
        return int(text)

    def query_choice(self, name: str, known: Sequence[str]) -> str:
        """Return one of the ``known`` words of the query, by default the first. Raises APIProblem
        422 for another one.
        """
        text = self.query.get(name, known[0])
        if text not in known:
            raise unprocessable(name, f"{text!r} is not one of {', '.join(known)}", source="query")
        return text

    def check_scope(self) -> None:
        """Raise APIProblem 422 for an unknown access_scope of the query. One user owns everything,
        so each means all.
        """
        self.query_choice("access_scope", ("owned", "accessible"))


def read_credential(headers: Mapping[str, str]) -> bytes:
    """Return the bytes of ``X-API-Key`` as they came; empty without one."""
    return headers.get("x-api-key", "").encode("latin-1")


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
        # behind a proxy that keeps the Host header, the proxy's
        base_url=f"{request.scope['scheme']}://{headers.get('host', '')}"
        f"{request.scope.get('root_path', '')}",
        is_local_client=request.client is not None
        and is_loopback(request.client.host)
        and headers.keys().isdisjoint(_PROXY_HEADERS),
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
        return _wire.decompress(content, limit)
    except ImportError:
        raise APIProblem(
            415, "this server has no zstd; install the zstandard package or send the body plain"
        ) from None
    except _wire.BodyTooLargeError:
        raise _size_problem(limit) from None
    except ValueError as error:
        raise APIProblem(422, str(error)) from error


def _size_problem(limit: int) -> APIProblem:
    return APIProblem(413, f"the body is larger than {limit} bytes (max_request_bytes)")
