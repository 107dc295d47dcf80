"""Bodies of older clients: read strictly first, and where that fails once more after filling in what they left out.

Until late 2025 clients sent explicit nulls, left out every default, and left out the ``type`` that tells the members of a
union apart. Everything is done from the types of the contract.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from tinker.local.problem import Problem
from tinker_records import prepare

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = re.compile(r"^(?P<message>.*) - at `\$(?P<path>.*)`$", re.DOTALL)
_PART = re.compile(r"[^.\[\]]+")


def read(content: bytes, kind: type[T]) -> T:
    """A JSON body as the record ``kind``. Problem 422, naming the place, when it is neither today's form nor an older one."""
    try:
        return msgspec.json.decode(content, type=prepare(kind))
    except msgspec.ValidationError:
        pass
    except msgspec.DecodeError as error:
        raise _no_json(error) from error
    try:
        return msgspec.convert(_filled(msgspec.json.decode(content), _type_of(kind)), kind)
    except msgspec.ValidationError as error:
        raise Problem(422, [_located(str(error))]) from error
    except msgspec.DecodeError as error:  # its beginning was read as a value of another type
        raise _no_json(error) from error


def _no_json(error: msgspec.DecodeError) -> Problem:
    return Problem(422, [{"loc": ["body"], "msg": f"not JSON: {error}", "type": "json_invalid"}])


_types: dict[type[msgspec.Struct], inspect.Type] = {}


def _type_of(kind: type[msgspec.Struct]) -> inspect.Type:
    if kind not in _types:
        _types[kind] = inspect.type_info(kind)
    return _types[kind]


def _filled(value: Any, kind: inspect.Type) -> Any:
    """The value without nulls that stand for defaults, and with the tags of its unions."""
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        return _filled_record(cast("dict[str, Any]", value), kind)
    if isinstance(kind, inspect.UnionType):
        return _filled_union(value, kind)
    if isinstance(kind, inspect.CollectionType) and isinstance(value, list):
        return [_filled(item, kind.item_type) for item in cast("Sequence[Any]", value)]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {key: _filled(item, kind.value_type) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _filled_record(value: dict[str, Any], kind: inspect.StructType) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    known = {field.encode_name: field for field in kind.fields}
    for key, item in value.items():
        field = known.get(key)
        if item is None and field is not None and not field.required:
            continue
        kept[key] = item if field is None else _filled(item, field.type)
    return kept


def _filled_union(value: object, kind: inspect.UnionType) -> Any:
    if isinstance(value, dict):
        record = cast("dict[str, Any]", value)
        members = _members(record, [member for member in kind.types if isinstance(member, inspect.StructType)])
        if members:
            return next((_tagged(record, member) for member in members if _fits(record, member)), _tagged(record, members[0]))
    inner = [member for member in kind.types if isinstance(member, (inspect.CollectionType, inspect.DictType))]
    return _filled(cast("Any", value), inner[0]) if inner else cast("Any", value)


def _tagged(record: dict[str, Any], member: inspect.StructType) -> dict[str, Any]:
    filled = _filled_record(record, member)
    return filled if member.tag_field is None else {member.tag_field: member.tag, **filled}


def _fits(record: dict[str, Any], member: inspect.StructType) -> bool:
    try:
        msgspec.convert(_tagged(record, member), prepare(member.cls))
    except msgspec.ValidationError:
        return False
    return True


def _members(record: dict[str, Any], members: list[inspect.StructType]) -> list[inspect.StructType]:
    """The member that its tag names; without a tag those whose required fields are there, most of them first."""
    named = [m for m in members if m.tag_field is not None and record.get(m.tag_field) == m.tag]
    if named:
        return named
    required = {id(m): {field.encode_name for field in m.fields if field.required} for m in members}
    fitting = [member for member in members if required[id(member)] <= record.keys()]
    return sorted(fitting, key=lambda member: len(required[id(member)]), reverse=True)


def _located(message: str) -> dict[str, Any]:
    """One entry of a 422 body: where, what, and the kind of error."""
    found = _PLACE.match(message)
    if found is None:
        return {"loc": ["body"], "msg": message, "type": "value_error"}
    parts = _PART.findall(found["path"])
    return {
        "loc": ["body", *(int(part) if part.isdigit() else part for part in parts)],
        "msg": found["message"],
        "type": "value_error",
    }
