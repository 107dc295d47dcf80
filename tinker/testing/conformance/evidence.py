"""What a finding points to: the place in openapi.yaml, and a recorded exchange of a real client that shows the right form."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

DOCUMENT = "openapi.yaml"
_RESULT = "retrieve_future:"


class RecordedExchange(msgspec.Struct, frozen=True):
    """An exchange of a real client. ``recording``: its file in the repository and its number there."""

    recording: str
    request: str
    sent: Any
    status: int
    answered: Any


@cache
def _exchanges() -> dict[str, RecordedExchange]:
    """Return the whole file, which `python -m codegen generate` makes."""
    content = files("tinker.testing.conformance").joinpath("evidence.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, RecordedExchange])


@attrs.frozen
class Place:
    """A place in the document: a JSON pointer."""

    pointer: str

    def __str__(self) -> str:
        return f"{DOCUMENT}{self.pointer}"


def place_of_operation(name: str) -> Place:
    """Return where an operation is described."""
    operation = OPERATIONS[name]
    path = operation.path.replace("~", "~0").replace("/", "~1")
    return Place(f"#/paths/{path}/{operation.method.lower()}")


def place_of_schema(name: str) -> Place | None:
    """Return where a type is described; None for what is no type of the document."""
    return Place(f"#/components/schemas/{name}") if name in models.__all__ else None


def exchange_of(operation: str) -> RecordedExchange | None:
    """Return the recorded exchange of an operation, or with ``retrieve_future:`` before it of its result; None without one."""
    return _exchanges().get(operation)


def exchanges_of(operation: str) -> dict[str, RecordedExchange]:
    """Return the recorded exchanges of an operation: of the request, and where it is answered by a future of its result."""
    found = {name: exchange_of(name) for name in (operation, _RESULT + operation)}
    return {name: exchange for name, exchange in found.items() if exchange is not None}
