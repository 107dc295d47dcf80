"""The values that a schema allows, as a flat list of alternatives, however the document spells it.

`oneOf`, `anyOf`, `if`/`then`/`else`, `type: [a, b]` and nullable enums become the same list, so
that a union may be written in another way without being another union. `x-open-enum` and an enum
beside a plain string are one thing too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from codegen.diff.findings import Change, difference
from codegen.diff.nodes import (
    SCHEMAS,
    child,
    elements,
    is_set,
    schema_name,
    spell,
    types_in,
    value_of,
)
from codegen.document import DocumentNode, is_mapping

UNIONS = ("oneOf", "anyOf")
#: What makes a schema more than a union: it is then also compared as it stands.
SUBSTANCE = ("properties", "items", "additionalProperties", "enum", "const")
#: The keys of a string schema that allows every string.
NARROWING = ("enum", "const", "pattern", "minLength", "maxLength", "format", "contentEncoding")


@dataclass(frozen=True)
class Alternative:
    """One of the schemas that a value may fit: a reference, or a schema of one JSON type (None: any
    value).
    """

    node: DocumentNode
    type: str | None
    #: The condition of `if`, under which this alternative holds.
    condition: object = None
    #: Values beyond the listed ones may appear.
    open: bool = False

    @property
    def label(self) -> str:
        """Return what two alternatives must have in common to be compared with each other."""
        name = schema_name(self.node)
        if name is not None:
            return name
        if self.type == "array":
            items = child(self.node, "items")
            inner = (
                " or ".join(item.label for item in alternatives(items))
                if items is not None
                else "anything"
            )
            return f"a list of {inner}"
        if self.type is None:
            return "any value"
        values = values_in(self.node)
        return (
            f"{self.type} {spell(values)}"
            if values is not None and not self.open
            else str(self.type)
        )


def alternatives(node: DocumentNode) -> list[Alternative]:
    """Return a schema's alternatives. References are not followed."""
    if schema_name(node) is not None:
        return [Alternative(node, None)]
    found = [
        item for key in UNIONS for element in elements(node, key) for item in alternatives(element)
    ]
    found += conditional(node)
    if not found or any(key in node.value for key in SUBSTANCE):
        found = by_type(node)
    return merge_open(found)


def conditional(node: DocumentNode) -> list[Alternative]:
    """Return the branches of `if`, each with its condition; that of `else` is the
    absence of one.
    """
    condition = value_of(node, "if")
    if condition is None:
        return []
    yes, no = child(node, "then"), child(node, "else")
    first = (
        [replace(item, condition=condition) for item in alternatives(yes)]
        if yes is not None
        else []
    )
    return first + (alternatives(no) if no is not None else [])


def by_type(node: DocumentNode) -> list[Alternative]:
    """Split a schema of several types into one for each."""
    is_open = is_set(node, "x-open-enum") or is_set(node, "x-open")
    types = types_in(node)
    if not types:
        return [Alternative(node, None, open=is_open)]
    return [
        Alternative(of_type(node, name), name, open=is_open and name != "null") for name in types
    ]


def of_type(node: DocumentNode, name: str) -> DocumentNode:
    """Return the part of a schema that is about one type; it stays where it was."""
    if name == "null":
        return DocumentNode({"type": "null"}, node.pointer, node.root)
    value = {**node.value, "type": name}
    if "enum" in value:
        value["enum"] = [item for item in value["enum"] if item is not None]
    return DocumentNode(value, node.pointer, node.root)


def merge_open(found: list[Alternative]) -> list[Alternative]:
    """Make one open enum of an enum and a plain string, which is how OpenAPI spells it without an
    extension.
    """
    plain = [item for item in found if is_plain_string(item)]
    listed = [item for item in found if item.type == "string" and values_in(item.node) is not None]
    if not plain or not listed:
        return found
    return [
        replace(item, open=True) if item in listed else item for item in found if item not in plain
    ]


def is_plain_string(item: Alternative) -> bool:
    return item.type == "string" and not any(key in item.node.value for key in NARROWING)


def is_any(items: Sequence[Alternative]) -> bool:
    """Return whether every JSON value is allowed."""
    return any(item.type is None and schema_name(item.node) is None for item in items)


def is_open_union(node: DocumentNode) -> bool:
    """Return whether members that the document does not list may appear: by extension, or by a
    plain object among them.
    """
    if is_set(node, "x-open-union"):
        return True
    inner = [item for key in UNIONS for item in elements(node, key)]
    plain = any(
        value_of(item, "type") == "object" and "properties" not in item.value
        for item in inner
        if is_mapping(item.value)
    )
    return plain or any(is_open_union(item) for item in inner)


def values_in(node: DocumentNode) -> list[object] | None:
    """Return the values of an enum, or the one of a constant; None where any value will do."""
    if is_mapping(node.value) and "const" in node.value:
        return [node.value["const"]]
    values = value_of(node, "enum")
    return list(values) if values is not None else None


@dataclass(frozen=True)
class Matched:
    """The alternatives of two schemas: those on both sides, and those on one."""

    before: list[Alternative]
    after: list[Alternative]
    both: list[tuple[Alternative, Alternative]]

    @property
    def gone(self) -> list[Alternative]:
        return [item for item in self.before if not any(item is old for old, _ in self.both)]

    @property
    def new(self) -> list[Alternative]:
        return [item for item in self.after if not any(item is new for _, new in self.both)]


def match(before: list[Alternative], after: list[Alternative]) -> Matched:
    """Match by name or form first, then the rest of one type, if there is one of it
    on each side.
    """
    matched = Matched(before, after, [])
    for old in before:
        same = next((new for new in matched.new if new.label == old.label), None)
        if same is not None:
            matched.both.append((old, same))
    for kind in dict.fromkeys(family(item) for item in matched.gone):
        gone = [item for item in matched.gone if family(item) == kind]
        new = [item for item in matched.new if family(item) == kind]
        if len(gone) == len(new) == 1 and kind:
            matched.both.append((gone[0], new[0]))
    return matched


def family(item: Alternative) -> str | None:
    """Return the type by which alternatives are matched; integers are numbers, references are of no
    type.
    """
    if schema_name(item.node):
        return None
    return "number" if item.type == "integer" else item.type


def compare_tags(old: DocumentNode, new: DocumentNode, use: str) -> Iterator[Change]:
    """Compare the discriminators of a union. Added and removed members are reported elsewhere."""
    before, after = discriminator(old), discriminator(new)
    if before is None or after is None:
        return
    names = before.get("propertyName"), after.get("propertyName")
    if names[0] != names[1]:
        what = f"the members are told apart by {names[1]}, were by {names[0]}"
        yield difference(
            "discriminator", new.pointer, what, use, wider=True, narrower=True, typed=True
        )
    tags, others = tags_by_member(before), tags_by_member(after)
    for member in sorted(tags.keys() & others.keys()):
        if tags[member] != others[member]:
            what = (
                f"{member.removeprefix(SCHEMAS)} is tagged {', '.join(others[member])}, was "
                f"{', '.join(tags[member])}"
            )
            yield difference(
                "discriminator", new.pointer, what, use, wider=True, narrower=True, typed=True
            )


def discriminator(node: DocumentNode) -> dict[str, object] | None:
    found = child(node, "discriminator")
    return found.value if found is not None and is_mapping(found.value) else None


def tags_by_member(value: dict[str, object]) -> dict[str, list[str]]:
    """Return the tags of each member, sorted."""
    mapping = value.get("mapping")
    found: dict[str, list[str]] = {}
    for tag, member in mapping.items() if is_mapping(mapping) else ():
        found.setdefault(str(member), []).append(str(tag))
    return {member: sorted(tags) for member, tags in found.items()}
