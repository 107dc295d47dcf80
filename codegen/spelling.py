"""Spell documents of others as the readers know them.

`anyOf` with null, as pydantic and FastAPI write it: of a reference and null it becomes `oneOf`; of
a plain schema and null it becomes that schema, with null among its types. Titles are no names of
classes here, so the parser does not see them.
"""

from __future__ import annotations

from typing import Any

from codegen.document import is_list, is_mapping

NULL = {"type": "null"}
#: What stands here is a value, and no part of the document.
VALUES = frozenset({"default", "const", "enum", "example", "examples", "info"})


def spell_nulls(node: Any) -> Any:
    """Return the document with every `anyOf` of one schema and null in its other spelling."""
    if is_list(node):
        return [spell_nulls(item) for item in node]
    if not is_mapping(node):
        return node
    spelled = {key: spell_nulls(value) for key, value in node.items()}
    members = spelled.get("anyOf")
    if not is_list(members) or len(members) != 2 or members.count(NULL) != 1:
        return spelled
    rest = {key: value for key, value in spelled.items() if key != "anyOf"}
    return _spell(rest, members, next(member for member in members if member != NULL))


def _spell(rest: dict[Any, Any], members: list[Any], member: Any) -> dict[Any, Any]:
    if (
        is_mapping(member)
        and isinstance(member.get("type"), str)
        and "const" not in member
        and "enum" not in member
    ):
        return {**member, **rest, "type": [member["type"], "null"]}
    if is_mapping(member) and "$ref" in member:
        return {**rest, "oneOf": members}
    return {**rest, "anyOf": members}


def drop_titles(node: Any) -> Any:
    """Return the document without the titles of its schemas."""
    if is_list(node):
        return [drop_titles(item) for item in node]
    if not is_mapping(node):
        return node
    kept = {
        key: value for key, value in node.items() if key != "title" or not isinstance(value, str)
    }
    return {key: value if key in VALUES else drop_titles(value) for key, value in kept.items()}
