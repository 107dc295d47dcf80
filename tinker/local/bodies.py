"""JSON bodies: read in today's or an older form, and their unknown fields named in the log, the
answer, or a refusal.

Until late 2025 clients sent explicit nulls, left out every default, and left out the ``type`` that
tells the members of a union apart. A body is read strictly first, and where that fails once more
after filling in what such clients left out.

A misspelled option, or one of another server, would otherwise be ignored in silence. Null has no
effect, ``type`` and the tag of a union only name a record, and maps with keys of the client's
choice are left alone.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from tinker.local.errors import APIProblem, FieldError, find_field_errors, read_field_error
from tinker_records import find_meant, prepare

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
        members = _find_members(
            record, [member for member in kind.types if isinstance(member, inspect.StructType)]
        )
        if members:
            return next(
                (_add_tag(record, member) for member in members if _fits(record, member)),
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


def _fits(record: dict[str, Any], member: inspect.StructType) -> bool:
    try:
        msgspec.convert(_add_tag(record, member), prepare(member.cls))
    except msgspec.ValidationError:
        return False
    return True


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
log: logging.Logger = logging.getLogger("tinker.local")


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
            faults = [
                {
                    "loc": ["body", *field.split(".")],
                    "msg": f"unknown field{_ask(meant)}",
                    "type": "extra_forbidden",
                }
                for field, meant in found.items()
            ]
            raise APIProblem(422, [*faults])
        for field, meant in found.items():
            self._warn(name, field, meant)
        return {HEADER: ", ".join(found)}

    def _warn(self, name: str, field: str, meant: str | None) -> None:
        if (name, field) not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add((name, field))
            log.warning("%s: unknown field %s was ignored%s", name, field, _ask(meant))


def _ask(meant: str | None) -> str:
    return "" if meant is None else f"; did you mean {meant!r}?"


def find_unknown_fields(content: bytes, kind: type[msgspec.Struct]) -> dict[str, str | None]:
    """Find the fields, such as ``sampling_params.topp``, that a record has no place for, each with
    the name it may mean.

    A body that is no object has none.
    """
    found = list(dict(_find_in_object(content, (kind,))).items())[:MAX_NAMED]
    return {
        _UNSAFE.sub("?", field)[:MAX_NAME_LENGTH]: _find_meant(field, known)
        for field, known in found
    }


def _find_meant(field: str, known: Collection[str]) -> str | None:
    return find_meant(field.rpartition(".")[2][:MAX_NAME_LENGTH], known)


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
    for member in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(member, inspect.CollectionType):
            yield member.item_type


def _find_in_object(content: bytes | msgspec.Raw, records: _Members) -> Iterator[_Unread]:
    try:
        body = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    fields, tags = _fields(records)
    for name, value in body.items():
        if name in fields:
            for is_list, inside in fields[name]:
                for part in _read_items(value) if is_list else [value]:
                    yield from (
                        (f"{name}.{inner}", known) for inner, known in _find_in_object(part, inside)
                    )
        elif name not in tags and bytes(value) != b"null":
            yield name or "?", fields


def _read_items(value: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(value, type=list[msgspec.Raw])[:MAX_ITEMS]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
