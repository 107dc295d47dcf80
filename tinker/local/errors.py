"""The exception that becomes an error status, the answers to it, and validation errors as clients
read them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from tinker_wire.models import ErrorCode, ErrorResponse, JSONValue

from tinker._wire import json

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


def unavailable(detail: str) -> APIProblem:
    """Make a 500 that asks clients not to retry, because somebody has to fix the server first."""
    return APIProblem(500, detail, {"x-should-retry": "false"})


def unprocessable(field: str, fault: str, kind: str = "value_error") -> APIProblem:
    """Make a 422 that names one field of the body."""
    return APIProblem(422, [{"loc": ["body", *field.split(".")], "msg": fault, "type": kind}])


#: Names of fields and indices of lists, from the outside in.
FieldPath: TypeAlias = Sequence[str | int]

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
        wanted = " or ".join(map(_to_words, found["wanted"].split(" | "))) + _describe_limit(
            found["limit"]
        )
        return FieldError(
            place,
            f"must be {wanted}" + (f", not {_to_words(found['found'])}" if found["found"] else ""),
            "type_error" if found["found"] else "value_error",
        )
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


def _to_words(kind: str) -> str:
    return _WORDS.get(kind, kind)


def _describe_limit(limit: str | None) -> str:
    """Return a limit in words, such as `` of at least 1``; empty without one."""
    found = _LIMIT.fullmatch(limit or "")
    if found is None:
        return f" {limit}" if limit else ""
    return f" of {found['what'] or ''}{_LIMITS[found['sign']]} {found['bound']}"


def format_place(place: FieldPath) -> str:
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
