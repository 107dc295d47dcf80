"""What a response holds, read as strictly as the generated records are, and what those would let
pass.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect
from tinker_wire import models
from tinker_wire.runtime import Binary, Request

from tinker._wire import EVENT_STREAM, EventDecoder, json, proto
from tinker.testing.conformance.connection import ReceivedResponse
from tinker.testing.conformance.outcome import Contradiction
from tinker.types.results import ForwardBackwardOutput, SampleResponse

T = TypeVar("T")

MISCOUNT, WIDTH = "count of results", "width of tensors"


def record(answer: ReceivedResponse, kind: type[T]) -> T:
    """Return the JSON body as a record. Contradiction when it is something else, or
    does not fit.
    """
    _require_type(answer, json.MEDIA_TYPE)
    try:
        return json.decode(answer.content, kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _misfit(
            answer, kind, f"the response is not a {kind.__name__}: {error}: {answer.excerpt}", error
        ) from error


def _require_type(answer: ReceivedResponse, *wanted: str) -> None:
    if answer.media_type not in wanted:
        how = (
            f"{answer.message}: a body as {answer.media_type or 'nothing'}, not as "
            f"{' or '.join(wanted)}"
        )
        raise Contradiction(how, cause="media type", operation=answer.message.operation)


def _misfit(answer: ReceivedResponse, kind: type[Any], how: str, error: Exception) -> Contradiction:
    """Describe a response that does not fit. The same misfit of the same record is one cause."""
    cause = f"misfit: {kind.__name__}: {error}"
    return Contradiction(
        f"{answer.message}: {how}",
        cause=cause,
        operation=answer.message.operation,
        schema=kind.__name__,
    )


def events(answer: ReceivedResponse, kind: type[T]) -> list[T]:
    """Return the data of each event of a stream as a record. Contradiction when it is something
    else, or does not fit.
    """
    _require_type(answer, EVENT_STREAM)
    try:
        return [
            json.decode(event.data.encode(), kind) for event in EventDecoder().feed(answer.content)
        ]
    except (ValueError, msgspec.DecodeError) as error:
        raise _misfit(
            answer, kind, f"an event is not a {kind.__name__}: {error}: {answer.excerpt}", error
        ) from error


#: The results that come in two forms: how each form is read, and the record of the JSON form.
_TWO_FORMS: dict[type[Any], tuple[Callable[[bytes], Any], Callable[[Any], Any], type[Any]]] = {
    ForwardBackwardOutput: (
        proto.decode_loss_output,
        json.public_loss_output,
        models.ForwardBackwardOutput,
    ),
    SampleResponse: (proto.decode_sample, json.public_sample, models.SampleResponse),
}


def has_two_forms(kind: type[Any]) -> bool:
    """Return whether a result of this type may be JSON or protobuf."""
    return kind in _TWO_FORMS


def result(answer: ReceivedResponse, kind: type[T]) -> T:
    """Return the result of a request. Contradiction when it does not fit."""
    if not has_two_forms(kind):
        return record(answer, kind)
    read_proto, read_json, schema = _TWO_FORMS[kind]
    _require_type(answer, proto.MEDIA_TYPE, json.MEDIA_TYPE)
    try:
        is_proto = answer.media_type == proto.MEDIA_TYPE
        return cast(
            "T", read_proto(answer.content) if is_proto else read_json(record(answer, schema))
        )
    except ValueError as error:
        raise _misfit(
            answer, schema, f"the result is not a {schema.__name__}: {error}", error
        ) from error


def find_mismatches(request: Request[Any], found: object) -> Iterator[tuple[str, str]]:
    """Yield in what the result of a loss or of a sample is not that of its request, each with its
    cause.
    """
    if isinstance(found, ForwardBackwardOutput):
        data, outputs = _count_data(request), len(found.loss_fn_outputs)
        if data not in (None, outputs):
            yield MISCOUNT, f"there are {outputs} outputs for {data} data"
    if isinstance(found, SampleResponse) and isinstance(body := request.body, models.SampleRequest):
        if len(found.sequences) != body.num_samples:
            yield MISCOUNT, f"asked for {body.num_samples} samples, got {len(found.sequences)}"
        for one in found.sequences:
            tokens, logprobs = one.tokens, one.logprobs
            if len(tokens) > (body.sampling_params.max_tokens or math.inf) and {*tokens[1::2]} <= {
                0,
                -1,
            }:
                how = (
                    "every second token is 0 or -1, as where each is written with "
                    "8 bytes instead of 4"
                )
                yield WIDTH, f"{how}: {tokens}"
            if logprobs is not None and len(logprobs) != len(tokens):
                yield MISCOUNT, f"{len(tokens)} tokens have {len(logprobs)} logprobs"


def _count_data(request: Request[Any]) -> int | None:
    """Return how many data a loss has; None for a body that is written by hand."""
    match request.body:
        case Binary(media_type=proto.MEDIA_TYPE, content=content):
            return len(proto.decode_forward_backward(b"".join(content)).data)
        case (
            models.ForwardBackwardRequest(forward_backward_input=given)
            | models.ForwardRequest(forward_input=given)
        ):
            return len(given.data)
        case _:
            return None


def anomalies(value: object, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield what clients survive and the document does not say, each with its cause: unlisted
    values, times without a zone.
    """
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
    """Yield a text that an open enum does not list, and an object that is none of the records of an
    open union.
    """
    if isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, Sequence):
        for one in cast("Sequence[object]", value):
            yield from _find_unlisted(one, kind.item_type, f"{where}[]")
    types = kind.types if isinstance(kind, inspect.UnionType) else ()
    listed = [one for one in types if isinstance(one, inspect.LiteralType)]
    if isinstance(value, str) and listed and value not in listed[0].values:
        yield (
            f"unlisted: {where}: {value}",
            f"{where}: {value!r} is none of {', '.join(map(str, listed[0].values))}",
        )
    records = [one for one in types if isinstance(one, inspect.StructType) and one.tag_field]
    if isinstance(value, Mapping) and records:
        tag, known = records[0].tag_field, ", ".join(str(one.tag) for one in records)
        found = cast("Mapping[object, object]", value).get(tag)
        yield f"unlisted: {where}.{tag}", f"{where}.{tag}: {found!r} is none of {known}"


def detail(answer: ReceivedResponse) -> str:
    """Return what a refusal says, for the report; its beginning where it is not in the form of the
    contract.
    """
    try:
        body: Any = msgspec.json.decode(answer.content)
        told = body["detail"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return answer.excerpt or "nothing"
    return first_line(told) if isinstance(told, str) else msgspec.json.encode(told).decode()[:200]


def first_line(told: str) -> str:
    """Return what an error says without its traceback: its first line, or where it begins with a
    traceback its last.
    """
    lines = told.strip().splitlines() or [""]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
