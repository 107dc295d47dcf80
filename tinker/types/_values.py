"""The public types that are not records of the contract, as plain data and back; see ``tinker_wire.values``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import attrs
from tinker_wire.values import Value

from tinker.types._dataclass import DataclassFields

if TYPE_CHECKING:
    from typing import Self


class AttrsValue(Value):
    """A value made with attrs; its fields are what its constructor takes. Functions of ``dataclasses`` take it too."""

    __slots__ = ()
    __dataclass_fields__: ClassVar = DataclassFields()

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in attrs.fields(cast("Any", type(self))) if field.init}

    def _replaced(self, update: dict[str, Any]) -> Self:
        return cast("Self", attrs.evolve(cast("Any", self), **update))
