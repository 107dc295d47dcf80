"""Bodies of older clients: read strictly first, and where that fails once more after filling in what they left out.

Until late 2025 clients sent explicit nulls, left out every default, and left out the ``type`` that tells the members of a
union apart. Everything is done from the types of the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from tinker.local.errors import APIProblem
from tinker.local.misfits import Misfit, find_misfits, read_misfit
from tinker_records import prepare

T = TypeVar("T", bound=msgspec.Struct)


def read_body(content: bytes, kind: type[T]) -> T:
    """Read a JSON body as the record ``kind``, in today's or an older form. Raises APIProblem 422, naming the field."""
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
        misfits = find_misfits(filled, kind) or [read_misfit(error)]
        raise APIProblem(422, [misfit.describe("body") for misfit in misfits]) from error


def _json_problem(error: msgspec.DecodeError) -> APIProblem:
    return APIProblem(422, [Misfit((), f"not JSON: {error}", "json_invalid").describe("body")])


_types: dict[type[msgspec.Struct], inspect.Type] = {}


def _type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    if kind not in _types:
        _types[kind] = inspect.type_info(kind)
    return _types[kind]


def _fill(value: Any, kind: inspect.Type) -> Any:
    """Return the value without nulls that stand for defaults, and with the tags of its unions."""
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        return _fill_record(cast("dict[str, Any]", value), kind)
    if isinstance(kind, inspect.UnionType):
        return _fill_union(value, kind)
    if isinstance(kind, inspect.CollectionType) and isinstance(value, list):
        return [_fill(item, kind.item_type) for item in cast("Sequence[Any]", value)]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {key: _fill(item, kind.value_type) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _fill_record(value: dict[str, Any], kind: inspect.StructType) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    known = {field.encode_name: field for field in kind.fields}
    for key, item in value.items():
        field = known.get(key)
        if item is None and field is not None and not field.required:
            continue
        kept[key] = item if field is None else _fill(item, field.type)
    return kept


def _fill_union(value: object, kind: inspect.UnionType) -> Any:
    if isinstance(value, dict):
        record = cast("dict[str, Any]", value)
        members = _find_members(record, [member for member in kind.types if isinstance(member, inspect.StructType)])
        if members:
            return next((_add_tag(record, member) for member in members if _fits(record, member)), _add_tag(record, members[0]))
    inner = [member for member in kind.types if isinstance(member, (inspect.CollectionType, inspect.DictType))]
    return _fill(cast("Any", value), inner[0]) if inner else cast("Any", value)


def _add_tag(record: dict[str, Any], member: inspect.StructType) -> dict[str, Any]:
    filled = _fill_record(record, member)
    return filled if member.tag_field is None else {member.tag_field: member.tag, **filled}


def _fits(record: dict[str, Any], member: inspect.StructType) -> bool:
    try:
        msgspec.convert(_add_tag(record, member), prepare(member.cls))
    except msgspec.ValidationError:
        return False
    return True


def _find_members(record: dict[str, Any], members: list[inspect.StructType]) -> list[inspect.StructType]:
    """Find the member of that tag; without a tag those whose required fields are there, most of them first."""
    named = [m for m in members if m.tag_field is not None and record.get(m.tag_field) == m.tag]
    if named:
        return named
    required = {id(m): {field.encode_name for field in m.fields if field.required} for m in members}
    fitting = [member for member in members if required[id(member)] <= record.keys()]
    return sorted(fitting, key=lambda member: len(required[id(member)]), reverse=True)
