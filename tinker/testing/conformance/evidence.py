"""What a finding points to: the place in openapi.yaml, and a recorded exchange of a real client that shows the correct form."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

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
def _read_exchanges() -> dict[str, RecordedExchange]:
    content = files("tinker.testing.conformance").joinpath("evidence.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, RecordedExchange])


def place_of_operation(name: str) -> str:
    """Return where an operation is described, as the document with a JSON pointer."""
    operation = OPERATIONS[name]
    path = operation.path.replace("~", "~0").replace("/", "~1")
    return f"{DOCUMENT}#/paths/{path}/{operation.method.lower()}"


def place_of_schema(name: str) -> str | None:
    """Return where a record is described; None for what is no record of the document."""
    return f"{DOCUMENT}#/components/schemas/{name}" if hasattr(models, name) else None


def exchanges_of(operation: str) -> dict[str, RecordedExchange]:
    """Return the recorded exchanges of an operation: its request, and the retrieval of its result."""
    recorded = _read_exchanges()
    return {name: recorded[name] for name in (operation, _RESULT + operation) if name in recorded}
