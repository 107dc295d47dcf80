"""The base of the wire's records, and what makes a type of records safe to read on
several threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, TypeVar, cast

import msgspec
import msgspec.structs

from tinker_records.names import NamesChecked, explain_change
from tinker_records.values import FieldInfo, Value

if TYPE_CHECKING:
    import inspect

S = TypeVar("S")

_prepared: set[object] = set()
_preparing = threading.Lock()


def _reset_after_fork() -> None:
    global _preparing
    _preparing = threading.Lock()  # the thread that held it is not in this process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def prepare(kind: type[S]) -> type[S]:
    """Return a type of records that can be read on any thread.

    msgspec looks at a record and those inside when it reads the first one. Two threads that do so
    at the same time end the process with a segmentation fault.
    """
    if kind not in _prepared:
        with _preparing:
            msgspec.json.Decoder(kind)
        _prepared.add(kind)
    return kind


def sent(default: S) -> S:
    """Return a field that is sent also at its default; msgspec leaves out what equals a default
    that it knows.
    """
    return msgspec.field(default_factory=lambda: default)


def _refuse_change(record: Record, name: str, value: object = None) -> NoReturn:
    raise AttributeError(explain_change(type(record).__name__, name, record.__struct_fields__))


class RecordType(msgspec.StructMeta, NamesChecked):
    """The type of the types of records, which are made as fast as msgspec makes them: their calls
    are not watched.
    """

    #: What the signature says of fields whose declared type says less, as their decoder needs it.
    _shown_types: ClassVar[Mapping[str, object]] = MappingProxyType({})

    def __init__(cls, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # msgspec gives every frozen type its own, which say less
        for method in ("__setattr__", "__delattr__"):
            setattr(cls, method, _refuse_change)

    @property
    def __signature__(cls) -> inspect.Signature:
        """Return the signature as people write it: a default that is made each time is shown by its
        value.
        """

        factories = {
            field.name: field.default_factory
            for field in msgspec.structs.fields(cast("type[msgspec.Struct]", cls))
            if field.default_factory is not msgspec.NODEFAULT
        }
        given: inspect.Signature = super().__signature__
        shown = [
            one.replace(default=factories[name]()) if name in factories else one
            for name, one in given.parameters.items()
        ]
        types = cls._shown_types
        return given.replace(
            parameters=[
                one.replace(annotation=types.get(one.name, one.annotation)) for one in shown
            ]
        )


class Record(
    Value, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=RecordType
):
    """The base of every record of the contract."""

    #: Fields whose value is for those who need it, not for a log.
    _secret_fields: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def _field_infos(cls) -> Iterable[FieldInfo]:
        config = cls.__struct_config__
        if config.tag_field is not None:
            yield FieldInfo(config.tag_field, Literal[config.tag], False, config.tag, init=False)
        for field in msgspec.structs.fields(cls):
            factory = None if field.default_factory is msgspec.NODEFAULT else field.default_factory
            shown = cls._shown_types.get(field.name, field.type)  # pyright: ignore[reportPrivateUsage]
            yield FieldInfo(field.name, shown, field.required, field.default, factory)

    def __repr__(self) -> str:
        secret, values = self._secret_fields, self._field_values()
        shown = {
            name: "***" if name in secret and value else value for name, value in values.items()
        }
        fields = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({fields})"

    def _field_values(self) -> dict[str, Any]:
        config = self.__struct_config__
        tag: dict[str, Any] = {config.tag_field: config.tag} if config.tag_field is not None else {}
        return {**tag, **{name: getattr(self, name) for name in self.__struct_fields__}}

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return msgspec.convert(fields, prepare(cls), strict=False)

    def _replace(self, update: dict[str, Any]) -> Self:
        return msgspec.structs.replace(self, **update)
