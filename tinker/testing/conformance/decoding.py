"""What a response holds, read as strictly as the generated records are, and what those would let pass."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect
from tinker_wire import models

from tinker._wire import EVENT_STREAM, EventDecoder, json, proto
from tinker.testing.conformance.connection import ReceivedResponse
from tinker.testing.conformance.outcome import Contradiction
from tinker.types.results import ForwardBackwardOutput, SampleResponse

T = TypeVar("T")


def record(answer: ReceivedResponse, kind: type[T]) -> T:
    """Return the JSON body as a record. Contradiction when it is something else, or does not fit."""
    _require_type(answer, json.MEDIA_TYPE)
    try:
        return json.decode(answer.content, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _misfit(answer, kind, f"the response is not a {kind.__name__}: {error}: {answer.excerpt}", error) from error


def _require_type(answer: ReceivedResponse, *wanted: str) -> None:
    if answer.media_type not in wanted:
        how = f"{answer.message}: a body as {answer.media_type or 'nothing'}, not as {' or '.join(wanted)}"
        raise Contradiction(how, cause="media type", operation=answer.message.operation)


def _misfit(answer: ReceivedResponse, kind: type[Any], how: str, error: Exception) -> Contradiction:
    """Describe a response that does not fit. The same misfit of the same record is one cause."""
    cause = f"misfit: {kind.__name__}: {error}"
    return Contradiction(f"{answer.message}: {how}", cause=cause, operation=answer.message.operation, schema=kind.__name__)


def events(answer: ReceivedResponse, kind: type[T]) -> list[T]:
    """Return the data of each event of a stream as a record. Contradiction when it is something else, or does not fit."""
    _require_type(answer, EVENT_STREAM)
    try:
        return [json.decode(event.data.encode(), kind) for event in EventDecoder().feed(answer.content)]
    except (ValueError, msgspec.DecodeError) as error:
        raise _misfit(answer, kind, f"an event is not a {kind.__name__}: {error}: {answer.excerpt}", error) from error


#: The results that come in two forms: how each form is read, and the record of the JSON form.
_TWO_FORMS: dict[type[Any], tuple[Callable[[bytes], Any], Callable[[Any], Any], type[Any]]] = {
    ForwardBackwardOutput: (proto.decode_loss_output, json.public_loss_output, models.ForwardBackwardOutput),
    SampleResponse: (proto.decode_sample, json.public_sample, models.SampleResponse),
}


def has_two_forms(kind: type[Any]) -> bool:
    """Return whether a result of this type may be JSON or protobuf."""
    return kind in _TWO_FORMS


def result_of_either_form(answer: ReceivedResponse, kind: type[T]) -> T:
    """Return the result of a loss or of a sample. Contradiction when it does not fit."""
    read_proto, read_json, schema = _TWO_FORMS[kind]
    _require_type(answer, proto.MEDIA_TYPE, json.MEDIA_TYPE)
    try:
        is_proto = answer.media_type == proto.MEDIA_TYPE
        return cast("T", read_proto(answer.content) if is_proto else read_json(record(answer, schema)))
    except ValueError as error:
        raise _misfit(answer, schema, f"the result is not a {schema.__name__}: {error}", error) from error


def anomalies(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield what clients survive and the document does not say, each with its cause: unlisted values, times without a zone."""
    if isinstance(value, msgspec.Struct):
        for field in _fields(type(value)):
            found = getattr(value, field.name)
            place = f"{where}.{field.encode_name}".lstrip(".")
            yield from _find_unlisted(found, field.type, place)
            yield from anomalies(found, place)
    elif isinstance(value, datetime.datetime) and value.tzinfo is None:
        yield "time without a zone", f"{where}: a time without a zone"
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[str, object]", value).items():
            yield from anomalies(item, f"{where}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for item in cast("Sequence[object]", value):
            yield from anomalies(item, f"{where}[]")


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return described.fields


def _find_unlisted(value: object, kind: inspect.Type, where: str) -> Iterator[tuple[str, str]]:
    """Yield a text that an open enum does not list."""
    listed = [one for one in kind.types if isinstance(one, inspect.LiteralType)] if isinstance(kind, inspect.UnionType) else []
    if isinstance(value, str) and listed and value not in listed[0].values:
        yield f"unlisted: {where}: {value}", f"{where}: {value!r} is none of {', '.join(map(str, listed[0].values))}"


def detail(answer: ReceivedResponse) -> str:
    """Return what a refusal says, for the report; its beginning where it is not in the form of the contract."""
    try:
        body: Any = msgspec.json.decode(answer.content)
        told = body["detail"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return answer.excerpt or "nothing"
    return first_line(told) if isinstance(told, str) else msgspec.json.encode(told).decode()[:200]


def first_line(told: str) -> str:
    """Return what an error says without its traceback: its first line, or where it begins with a traceback its last."""
    lines = told.strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
