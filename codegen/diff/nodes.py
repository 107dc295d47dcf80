"""Reads raw documents: follows references, names places, and lists the parts of a schema.

Nothing is refused here but a reference to nothing: the comparison takes any OpenAPI document, also
one that the generator does not understand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from codegen.document import DocumentNode, is_list, is_mapping

SCHEMAS = "#/components/schemas/"
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def follow(node: DocumentNode) -> DocumentNode:
    """Return the target of a node's references, over as many as there are; the node itself where it
    has none.
    """
    seen: set[str] = set()
    while is_mapping(node.value) and isinstance(node.value.get("$ref"), str):
        target = node.value["$ref"]
        if target in seen or not target.startswith("#/"):
            raise node.refusal(f"{target!r} cannot be followed")
        seen.add(target)
        node = node_at(node, target)
    return node


def node_at(node: DocumentNode, pointer: str) -> DocumentNode:
    """Return the node at a JSON pointer of the document that a node belongs to."""
    found = DocumentNode.of_document(node.root)
    for key in pointer.removeprefix("#/").split("/"):
        name = key.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name) if is_list(found.value) else name]
        except (KeyError, ValueError, IndexError, TypeError):
            raise node.refusal(f"{pointer!r} points to nothing") from None
    return found


def schema_name(node: DocumentNode) -> str | None:
    """Return the name of the component that a schema refers to."""
    target = node.value.get("$ref") if is_mapping(node.value) else None
    return (
        target.removeprefix(SCHEMAS)
        if isinstance(target, str) and target.startswith(SCHEMAS)
        else None
    )


def child(node: DocumentNode, key: str) -> DocumentNode | None:
    """Return a member of a mapping, None where it is missing."""
    return node[key] if is_mapping(node.value) and key in node.value else None


def children(node: DocumentNode, key: str) -> dict[str, DocumentNode]:
    """Return the members of a mapping in a mapping; none where it is missing."""
    found = child(node, key)
    return (
        {str(name): found[name] for name in found.value}
        if found is not None and is_mapping(found.value)
        else {}
    )


def elements(node: DocumentNode, key: str) -> list[DocumentNode]:
    """Return the members of a list in a mapping; none where it is missing."""
    found = child(node, key)
    return (
        [found[index] for index in range(len(found.value))]
        if found is not None and is_list(found.value)
        else []
    )


def value_of(node: DocumentNode, key: str, default: Any = None) -> Any:
    """Return a value of a mapping; the default where the node is something else, such as the schema
    `true`.
    """
    return node.value.get(key, default) if is_mapping(node.value) else default


def is_set(node: DocumentNode, key: str) -> bool:
    return value_of(node, key) is True


def pairs(
    old: dict[str, DocumentNode], new: dict[str, DocumentNode]
) -> Iterator[tuple[str, DocumentNode | None, DocumentNode | None]]:
    """Iterate over the names of both sides, with each side's value or None."""
    for name in [*old, *(name for name in new if name not in old)]:
        yield name, old.get(name), new.get(name)


def spell(value: object) -> str:
    """Return a value of the document as JSON, short enough for a sentence."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def types_in(node: DocumentNode) -> tuple[str, ...]:
    """Return the JSON types that a schema allows; every type where it says none."""
    declared = value_of(node, "type")
    if isinstance(declared, str):
        return (declared,)
    if is_list(declared):
        return tuple(str(name) for name in declared)
    if "const" in (node.value if is_mapping(node.value) else {}):
        return (type_of_value(node.value["const"]),)
    values = value_of(node, "enum")
    if is_list(values):
        return tuple(dict.fromkeys(type_of_value(value) for value in values))
    if "properties" in (node.value if is_mapping(node.value) else {}):
        return ("object",)
    return ()


def type_of_value(value: object) -> str:
    """Return the JSON type of a value."""
    if value is None:
        return "null"
    kinds = (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")
