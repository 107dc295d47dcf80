"""What makes `dataclasses.replace`, `fields` and `asdict` take values that are made with attrs."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, cast

import attrs


class DataclassFields:
    """The descriptor behind ``__dataclass_fields__``: the fields that the constructor takes."""

    def __get__(self, instance: object, owner: type[Any]) -> dict[str, dataclasses.Field[Any]]:
        if not attrs.has(owner):
            raise AttributeError(f"{owner.__name__} has no fields")
        return _fields_of(owner)


@cache
def _fields_of(kind: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    taken = [field for field in attrs.fields(kind) if field.init]
    alike = dataclasses.make_dataclass(kind.__name__, [(field.name, field.type or Any, _alike(field)) for field in taken])
    return cast("dict[str, dataclasses.Field[Any]]", cast("Any", alike).__dataclass_fields__)


def _alike(field: attrs.Attribute[Any]) -> Any:
    default: Any = field.default
    if default is attrs.NOTHING:
        return dataclasses.field(kw_only=field.kw_only)
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return dataclasses.field(default_factory=default.factory, kw_only=field.kw_only)
    return dataclasses.field(default=default, kw_only=field.kw_only)
