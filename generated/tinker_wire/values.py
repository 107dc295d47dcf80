# generated from openapi.yaml; do not edit
"""Values as plain data, and back: what every record can do, and what the public types of a client have in common with it."""

from __future__ import annotations

import base64
import copy
import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import msgspec
import msgspec.structs

if TYPE_CHECKING:
    from typing import Self

Mode: TypeAlias = Literal["python", "json"]


class Value:
    """A value with named fields. The names of its methods are those of the models that these types once were."""

    __slots__ = ()

    def model_dump(
        self,
        *,
        mode: Mode = "python",
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        exclude_none: bool = False,
    ) -> dict[str, Any]:
        """Return the fields by name, in order; values inside become dictionaries too.

        Bytes are base64. `mode` "json" spells dates and makes tuples lists; "python" leaves both as they are. `include` and
        `exclude` name fields of this value only, `exclude_none` is about every level.
        """
        return {
            name: _plain(value, mode, exclude_none)
            for name, value in self._fields().items()
            if not (exclude_none and value is None)
            and (include is None or name in include)
            and (exclude is None or name not in exclude)
        }

    def model_dump_json(
        self,
        *,
        indent: int | None = None,
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        exclude_none: bool = False,
    ) -> str:
        """Return the JSON text of `model_dump`, on one line without blanks unless `indent` says how deep."""
        plain = self.model_dump(mode="json", include=include, exclude=exclude, exclude_none=exclude_none)
        text = msgspec.json.encode(plain)
        return (text if indent is None else msgspec.json.format(text, indent=indent)).decode()

    @classmethod
    def model_validate(cls, obj: object) -> Self:
        """Read what `model_dump` writes; a value of this type is returned as it is.

        Numbers may be spelled as text, fields with a default may be missing. Raises ValueError for what does not fit.
        """
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping):
            raise ValueError(f"{cls.__name__} cannot be read from {type(obj).__name__}")
        try:
            return cls._of_fields(dict(cast("Mapping[str, Any]", obj)))
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{cls.__name__}: {error}") from error

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray) -> Self:
        """Read what `model_dump_json` writes. Raises ValueError for what does not fit or is no JSON."""
        return cls.model_validate(msgspec.json.decode(json_data))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields replaced; what is inside is shared unless `deep`."""
        source = copy.deepcopy(self) if deep else self
        return source._replaced(dict(update or {}))

    def _fields(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(**fields)

    def _replaced(self, update: dict[str, Any]) -> Self:
        return type(self)._of_fields({**self._fields(), **update})


class Record(Value, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of every record of the contract."""

    def _fields(self) -> dict[str, Any]:
        config = self.__struct_config__
        tag: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field is not None else {}
        return {**tag, **{name: getattr(self, name) for name in self.__struct_fields__}}

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return msgspec.convert(fields, cls, strict=False)

    def _replaced(self, update: dict[str, Any]) -> Self:
        return msgspec.structs.replace(self, **update)


def _plain(value: object, mode: Mode, exclude_none: bool) -> object:
    if isinstance(value, Value):
        return value.model_dump(mode=mode, exclude_none=exclude_none)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return {name: _plain(item, mode, exclude_none) for name, item in pairs}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (list, tuple)):
        items = [_plain(item, mode, exclude_none) for item in cast("Sequence[object]", value)]
        return tuple(items) if isinstance(value, tuple) and mode == "python" else items
    return msgspec.to_builtins(value) if mode == "json" and isinstance(value, datetime.datetime) else value
