"""Names of fields that servers written for older versions use, beside the current ones."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)


def add_older_name(kind: type[M], name: str, older: str) -> type[M]:
    """Let messages of a class be made, read and written with an older name of a field too; return
    the class.

    A field has one name in a message's description, and the bytes have none, so the class learns
    the other one.
    """
    make, assign = kind.__init__, kind.__setattr__

    def make_with_either(self: M, **fields: Any) -> None:
        if older in fields:
            fields[name] = fields.pop(older)
        make(self, **fields)

    def assign_either(self: M, attribute: str, value: Any) -> None:
        assign(self, name if attribute == older else attribute, value)

    def read(self: M) -> Any:
        return getattr(self, name)

    setattr(kind, "__init__", make_with_either)  # noqa: B010 - a type checker allows no assignment to a method
    setattr(kind, "__setattr__", assign_either)  # noqa: B010
    setattr(kind, older, property(read))
    return kind
