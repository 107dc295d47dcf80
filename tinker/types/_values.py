"""What the public values share: their base, their checks, and numpy on first use."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NoReturn,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
)

import attrs
import msgspec
import msgspec.structs

from tinker._basics.checks import to_plain
from tinker._basics.lazy import shield
from tinker_records import FieldInfo, Record, Value, explain_change, suggest_name

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        """The module, imported on first use, out of the reach of Ctrl-C."""

        def __getattr__(self, name: str) -> object:
            value = getattr(shield(import_module)("numpy"), name)
            setattr(self, name, value)  # so that the next look is as quick as into the module
            return value

    np = _Numpy()


V = TypeVar("V", bound=Value)


class SuggestsNames:
    """Base of classes whose AttributeError says where to find what was looked for under another
    name.
    """

    __slots__ = ()

    #: By the name that is looked for: where it is, or how it is made.
    _suggestions: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # an attribute that is not there stays an error to type checkers

        def __getattr__(self, name: str) -> object:
            kind = type(self)
            where = (
                "it directly, as it is not a future"
                if name == "result"
                else kind._suggestions.get(name)
            )
            advice = f": use {where}" if where else suggest_name(name, dir(kind))
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}{advice}")


class FrozenValueError(attrs.exceptions.FrozenInstanceError):
    """A field of a value was set or deleted."""

    def __init__(self, message: str) -> None:
        AttributeError.__init__(self, message)


def refuse_change(value: Value, name: str, _: object = None) -> NoReturn:
    """Raise FrozenValueError, which says how to make another value."""
    known = [info.name for info in value._known_fields()]  # pyright: ignore[reportPrivateUsage]
    raise FrozenValueError(explain_change(type(value).__name__, name, known))


def explain_changes(kind: type[V]) -> type[V]:
    """Have a class that attrs made frozen, without slots, say more when a value is changed."""
    for method in ("__setattr__", "__delattr__"):
        setattr(kind, method, refuse_change)
    return kind


def _find_array_types() -> dict[str, object]:
    """Return what annotations name and modules import for type checkers only, as numpy is slow to
    import.
    """
    from numpy.typing import NDArray

    return {"NDArray": NDArray}


class AttrsValue(Value):
    """Base of value classes made with attrs: their fields are the parameters of the constructor."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        if "__attrs_attrs__" in vars(cls):  # attrs makes a class with slots a second time
            explain_changes(cls)

    def _field_values(self) -> dict[str, Any]:
        return {
            field.name: getattr(self, field.name)
            for field in attrs.fields(cast("Any", type(self)))
            if field.init
        }

    def _replace(self, update: dict[str, Any]) -> Self:
        return cast("Self", attrs.evolve(cast("Any", self), **update))

    @classmethod
    def _field_infos(cls) -> Iterable[FieldInfo]:
        if not attrs.has(cls):
            yield from super()._field_infos()
        for field in attrs.fields(
            attrs.resolve_types(cast("Any", cls), localns=_find_array_types())
        ):
            if field.name.startswith("_"):
                continue
            default: Any = field.default
            factory = (
                cast("Callable[[], object]", default.factory)
                if isinstance(default, attrs.Factory)  # type: ignore[arg-type]
                else None
            )
            yield FieldInfo(
                field.name, field.type, default is attrs.NOTHING, default, factory, field.kw_only
            )


class FrozenValue(Value):
    """Base of value classes whose constructor is written by hand: its parameters are the fields,
    except with an underscore.
    """

    __slots__ = ()

    @classmethod
    def _field_infos(cls) -> Iterable[FieldInfo]:
        signature = inspect.signature(cls.__init__, locals=_find_array_types(), eval_str=True)
        for name, parameter in list(signature.parameters.items())[1:]:
            required, kw_only = (
                parameter.default is parameter.empty,
                parameter.kind is parameter.KEYWORD_ONLY,
            )
            if not name.startswith("_"):
                yield FieldInfo(
                    name, parameter.annotation, required, parameter.default, None, kw_only
                )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        refuse_change(self, name)


_fields = functools.cache(msgspec.structs.fields)


def convert_numbers(record: Record) -> None:
    """Convert the numbers of a new record to plain ones of the declared types, from numpy's and
    from numbers spelled as text.

    Raises ValueError for a value that is not such a number.
    """
    for field in _fields(type(record)):
        if field.type is not Any:
            msgspec.structs.force_setattr(record, field.name, _number(record, field))


def _number(record: Record, field: msgspec.structs.FieldInfo) -> object:
    number = to_plain(getattr(record, field.name))
    try:
        return msgspec.convert(number, cast("type[object]", field.type), strict=False)
    except msgspec.ValidationError as error:
        wanted = bound[0] if (bound := _BOUND.search(str(error))) else _describe(field.type)
        raise ValueError(
            f"{type(record).__name__}.{field.name} must be {wanted}, got {number!r}"
        ) from None


_BOUND = re.compile(r"[<>]=? [-.\d]+")  # in the words of msgspec
_WORDS: dict[object, str] = {
    int: "an integer", float: "a number", bool: "True or False",
    dict: "a mapping", Sequence: "a list", type(None): "None",
}  # fmt: skip


def _describe(kind: object) -> str:
    """Return a type of a field in words, such as "an integer or None"."""
    plain = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    return " or ".join(_WORDS.get(get_origin(one) or one, str(one)) for one in plain or (kind,))
