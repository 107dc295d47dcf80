"""Values as plain data, and back: what records and the other public types of a client have in
common.
"""

from __future__ import annotations

import base64
import copy
import datetime
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, cast

import msgspec

from tinker_records.names import NamesChecked

if TYPE_CHECKING:
    import dataclasses

    from pydantic.fields import FieldInfo as PydanticField

Mode: TypeAlias = Literal["python", "json"]
Plain: TypeAlias = dict[str, Any]  # by a name, as values have a method that is called ``dict``


class FieldInfo(NamedTuple):
    """A field of a value, as its constructor takes it."""

    name: str
    type: Any
    required: bool
    default: object = None
    #: Makes the default where that is a fresh value each time.
    factory: Callable[[], object] | None = None
    kw_only: bool = True
    #: False for what the constructor does not take.
    init: bool = True


class _Fields:
    """What `dataclasses` and its like look for on a class; made when somebody looks."""

    def __get__(self, instance: object, owner: Any) -> dict[str, dataclasses.Field[Any]]:
        return cast("dict[str, dataclasses.Field[Any]]", _dataclass_of(owner).__dataclass_fields__)


class _ModelFields:
    """The same fields in pydantic's words; missing, as `hasattr` says, where pydantic is not
    installed.
    """

    def __get__(self, instance: object, owner: Any) -> dict[str, PydanticField]:
        try:
            from pydantic.fields import FieldInfo as PydanticField
        except ImportError:
            raise AttributeError(
                f"{owner.__name__}.model_fields needs pydantic: pip install pydantic"
            ) from None
        return {
            info.name: PydanticField(annotation=info.type, **_describe_default(info))
            for info in owner._field_infos()
        }


class _Parameters:
    """How the values of a class behave, in the words of `dataclasses`."""

    def __get__(self, instance: object, owner: Any) -> object:
        return cast("object", _dataclass_of(owner).__dataclass_params__)


if TYPE_CHECKING:
    # with a metaclass, pyright takes the `__dict__` of a value for that of its class
    _ValueType = type
else:
    _ValueType = NamesChecked


class Described:
    """An object that is not a value; notebooks show it as a table of its facts."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        """Return what is known without a request, without secrets; None is left out."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        from tinker_records.html import to_html

        known = {name: fact for name, fact in self._facts().items() if fact is not None}
        return to_html(type(self).__name__, known, frozenset())


class Value(metaclass=_ValueType):
    """A value with named fields.

    The names of its methods are those of the models that these types once were.
    `dataclasses.fields`, `asdict` and `replace` work too, and so does a field of this type in a
    pydantic model.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[Any] = _Fields()
    __dataclass_params__: ClassVar[Any] = _Parameters()
    model_fields: ClassVar[Any] = _ModelFields()

    def _repr_html_(self) -> str:
        """Return a table of the fields, which notebooks show."""
        from tinker_records.html import to_html

        return to_html(
            type(self).__name__,
            self._field_values(),
            getattr(self, "_secret_fields", frozenset[str]()),
        )

    def model_dump(
        self,
        *,
        mode: Mode = "python",
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        exclude_none: bool = False,
    ) -> Plain:
        """Return the fields as a dictionary, in order, and nested values as dictionaries too.

        Bytes are encoded as base64. `mode="json"` writes dates as strings and tuples as lists;
        `mode="python"` leaves them unchanged. `include` and `exclude` apply to the fields of this
        value; `exclude_none` applies at every level.
        """
        return {
            name: _plain(value, mode, exclude_none)
            for name, value in self._field_values().items()
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
        """Return `model_dump` as JSON, on one line, or indented by `indent` spaces."""
        plain = self.model_dump(
            mode="json", include=include, exclude=exclude, exclude_none=exclude_none
        )
        text = msgspec.json.encode(plain)
        return (text if indent is None else msgspec.json.format(text, indent=indent)).decode()

    @classmethod
    def model_validate(cls, obj: object) -> Self:
        """Create a value from the output of `model_dump`. A value of this type is returned
        unchanged.

        Accepts numbers given as strings. Fields with a default may be missing. Raises ValueError
        for invalid input.
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
        """Create a value from the output of `model_dump_json`. Raises ValueError
        for invalid input.
        """
        return cls.model_validate(msgspec.json.decode(json_data))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the fields in `update` replaced. Nested values are shared unless
        `deep` is True.
        """
        source = copy.deepcopy(self) if deep else self
        return source._replace(dict(update or {}))

    def dict(self, **options: Any) -> Plain:
        """Deprecated alias of `model_dump`."""
        return self.model_dump(**options)

    def json(self, **options: Any) -> str:
        """Deprecated alias of `model_dump_json`."""
        return self.model_dump_json(**options)

    def copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Deprecated alias of `model_copy`."""
        return self.model_copy(update=update, deep=deep)

    @classmethod
    def parse_obj(cls, obj: object) -> Self:
        """Deprecated alias of `model_validate`."""
        return cls.model_validate(obj)

    @classmethod
    def parse_raw(cls, b: str | bytes | bytearray) -> Self:
        """Deprecated alias of `model_validate_json`."""
        return cls.model_validate_json(b)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(_serialize, info_arg=True)
        return core_schema.no_info_plain_validator_function(
            cls.model_validate, serialization=written
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: object, handler: object) -> Any:
        """Return what the documents of a web framework say of a value: that it is an object with
        these fields.
        """
        fields: dict[str, Any] = {info.name: {} for info in cls._known_fields()}
        return {"title": cls.__name__, "type": "object", "properties": fields}

    @classmethod
    def _known_fields(cls) -> Iterable[FieldInfo]:
        try:
            return cls._field_infos()
        except AttributeError:
            return ()

    def _field_values(self) -> Plain:
        raise NotImplementedError

    @classmethod
    def _field_infos(cls) -> Iterable[FieldInfo]:
        """Return the fields of this class. AttributeError where only its subclasses have any, so
        that `hasattr` says so.
        """
        raise AttributeError(f"{cls.__name__} has no fields of its own")

    @classmethod
    def _of_fields(cls, fields: Plain) -> Self:
        return cls(**fields)

    def _replace(self, update: Plain) -> Self:
        return type(self)._of_fields({**self._field_values(), **update})


@cache
def _dataclass_of(kind: Any) -> Any:
    """Return a dataclass with the fields of a class of values, which says of them what there is to
    say.
    """
    import dataclasses

    same = kind.__eq__ is not object.__eq__
    fields = [
        (
            info.name,
            info.type,
            dataclasses.field(kw_only=info.kw_only, init=info.init, **_describe_default(info)),
        )
        for info in kind._field_infos()
    ]
    return dataclasses.make_dataclass(kind.__name__, fields, eq=same, frozen=True)


def _describe_default(info: FieldInfo) -> Plain:
    if info.factory is None:
        return {} if info.required else {"default": info.default}
    default = info.factory()
    return (
        {"default": default} if isinstance(default, Hashable) else {"default_factory": info.factory}
    )


def _serialize(value: Value, info: Any) -> dict[str, Any]:
    return value.model_dump(mode=info.mode, exclude_none=info.exclude_none)


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
    return (
        msgspec.to_builtins(value)
        if mode == "json" and isinstance(value, datetime.datetime)
        else value
    )
