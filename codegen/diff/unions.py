"""Finds which alternatives of two schemas are the same one, and compares the tags of unions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from codegen.diff.alternatives import Alternative
from codegen.diff.findings import Change, difference
from codegen.diff.nodes import SCHEMAS, child, schema_name
from codegen.document import DocumentNode, is_mapping


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
    """Match by name or form first, then what is left of one type, if there is one of it on each side."""
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
    """Return the type by which alternatives are matched; integers are numbers, references are of no type."""
    if schema_name(item.node):
        return None
    return "number" if item.type == "integer" else item.type


def compare_tags(old: DocumentNode, new: DocumentNode, use: str) -> Iterator[Change]:
    """Compare by what readers tell the members of a union apart. Members that came or went are told elsewhere."""
    before, after = discriminator(old), discriminator(new)
    if before is None or after is None:
        return
    names = before.get("propertyName"), after.get("propertyName")
    if names[0] != names[1]:
        what = f"the members are told apart by {names[1]}, were by {names[0]}"
        yield difference("discriminator", new.pointer, what, use, wider=True, narrower=True, typed=True)
    tags, others = tags_by_member(before), tags_by_member(after)
    for member in sorted(tags.keys() & others.keys()):
        if tags[member] != others[member]:
            what = f"{member.removeprefix(SCHEMAS)} is tagged {', '.join(others[member])}, was {', '.join(tags[member])}"
            yield difference("discriminator", new.pointer, what, use, wider=True, narrower=True, typed=True)


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
