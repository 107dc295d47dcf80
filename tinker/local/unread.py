"""Unknown fields of JSON bodies: a warning in the log and a header of the answer, or a refusal.

A misspelled option, or one of another server, would otherwise be ignored in silence. Null asks for nothing, ``type`` and the
tag of a union only name a record, and maps with keys of the client's choice are left alone.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Collection, Iterator, Mapping

import msgspec
from msgspec import inspect

from tinker.local.errors import APIProblem
from tinker_records import find_meant

HEADER = "x-tinker-unread-fields"
TAG = "type"
MAX_ITEMS = 8  # of a list are looked at: items of one list are alike
MAX_NAMED = 20
MAX_NAME_LENGTH = 100
MAX_WARNINGS = 1000  # one for each field of each operation
_UNSAFE = re.compile(r"[^\w.\[\]-]", re.ASCII)
_Members = tuple[inspect.StructType, ...]
_Unread = tuple[str, Collection[str]]  # a field, and the names of those that are read at its place
log: logging.Logger = logging.getLogger("tinker.local")


class UnreadFields:
    """What one server does about unknown fields; ``strict`` refuses them."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._warned: set[tuple[str, str]] = set()

    def check(self, name: str, content: bytes, kind: type[msgspec.Struct] | None) -> Mapping[str, str]:
        """Return the headers that name unread fields of a body for ``kind``. Raises APIProblem 422 where that is strict."""
        found = {} if kind is None or not content else find_unread(content, kind)
        if not found:
            return {}
        if self._strict:
            faults = [
                {"loc": ["body", *field.split(".")], "msg": f"unknown field{_ask(meant)}", "type": "extra_forbidden"}
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


def find_unread(content: bytes, kind: type[msgspec.Struct]) -> dict[str, str | None]:
    """Find the fields, such as ``sampling_params.topp``, that a record has no place for, each with the name it may mean.

    A body that is no object has none.
    """
    found = list(dict(_find_in_object(content, _members(kind))).items())[:MAX_NAMED]
    return {_UNSAFE.sub("?", field)[:MAX_NAME_LENGTH]: _find_meant(field, known) for field, known in found}


def _find_meant(field: str, known: Collection[str]) -> str | None:
    return find_meant(field.rpartition(".")[2][:MAX_NAME_LENGTH], known)


@functools.cache
def _members(kind: type[msgspec.Struct]) -> _Members:
    return _records(inspect.type_info(kind))


def _records(kind: inspect.Type) -> _Members:
    """Return the records that a value of this type may be; none for every other type."""
    if isinstance(kind, inspect.StructType):
        return (kind,)
    if isinstance(kind, inspect.UnionType):
        return tuple(record for member in kind.types for record in _records(member))
    return ()


def _is_open(kind: inspect.Type) -> bool:
    """Return whether a value may be a map with any keys."""
    members = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return any(isinstance(member, (inspect.DictType, inspect.AnyType)) for member in members)


def _items(kind: inspect.Type) -> Iterator[inspect.Type]:
    for member in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(member, inspect.CollectionType):
            yield member.item_type


def _find_in_object(content: bytes | msgspec.Raw, records: _Members) -> Iterator[_Unread]:
    try:
        body = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    fields: dict[str, list[inspect.Type]] = {}
    for field in (field for record in records for field in record.fields):
        fields.setdefault(field.encode_name, []).append(field.type)
    tags = {TAG, *(record.tag_field for record in records)}
    for name, value in body.items():
        if name in fields:
            for kind in fields[name]:
                yield from ((f"{name}.{inner}", known) for inner, known in _find_in_value(value, kind))
        elif name not in tags and bytes(value) != b"null":
            yield name or "?", fields


def _find_in_value(value: msgspec.Raw, kind: inspect.Type) -> Iterator[_Unread]:
    records = _records(kind)
    if records and not _is_open(kind):
        yield from _find_in_object(value, records)
    for item_kind in _items(kind):
        if _records(item_kind) and not _is_open(item_kind):
            yield from (field for item in _read_items(value) for field in _find_in_object(item, _records(item_kind)))


def _read_items(value: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(value, type=list[msgspec.Raw])[:MAX_ITEMS]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
