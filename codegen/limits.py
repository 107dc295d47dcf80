"""Turn the limits and the `x-constants` of the schemas into the constants of limits.py.

`TTL_SECONDS_MINIMUM` is the `minimum` of the schema `TtlSeconds`,
`CREATE_CUSTOM_LOSS_REQUEST_INPUTS_MAX_ITEMS` is the `maxItems` of a property. `x-constants` holds
what a schema cannot say in JSON Schema: plain values by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from codegen.document import LIMITS, DocumentNode, is_list, is_mapping

NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Constant:
    name: str
    source: str
    doc: str


def read_limits(root: DocumentNode) -> list[Constant]:
    """Return the constants of all schemas, in the order of the document."""
    return [
        constant
        for name, node in root["components"]["schemas"].items()
        for constant in schema_limits(name, node)
    ]


def schema_limits(name: str, node: DocumentNode) -> Iterator[Constant]:
    yield from own_limits(screaming(name), name, node)
    for key, prop in node["properties"].items() if "properties" in node else ():
        yield from own_limits(f"{screaming(name)}_{screaming(key)}", f"{name}.{key}", prop)
    for key, value in node["x-constants"].items() if "x-constants" in node else ():
        if not NAME.fullmatch(key) or not is_plain(value.value):
            raise value.refusal(
                "a constant has a snake_case name and is made of texts, numbers, lists and mappings"
            )
        yield Constant(
            f"{screaming(name)}_{key.upper()}", repr(value.value), f"`{key}` of `{name}`."
        )


def own_limits(prefix: str, of: str, node: DocumentNode) -> Iterator[Constant]:
    for key in node.mapping():
        if key in LIMITS:
            yield Constant(f"{prefix}_{screaming(key)}", repr(node.get(key)), f"`{key}` of `{of}`.")


def is_plain(value: Any) -> bool:
    if is_mapping(value):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return (
        all(is_plain(item) for item in value)
        if is_list(value)
        else isinstance(value, str | int | float)
    )


def screaming(name: str) -> str:
    """Return a name of any case in SCREAMING_SNAKE_CASE."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()
