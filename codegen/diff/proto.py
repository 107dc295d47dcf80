"""Compares two `.proto` files: the effect of a changed number, type, label or name on the wire and
in code.

Unknown fields are skipped and missing ones have a default, so that nothing here fails loudly: what
breaks is lost or misread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from codegen.diff.findings import (
    CLIENTS,
    NARROWER,
    PYTHON,
    RECEIVED,
    SENT,
    SERVERS,
    WIDER,
    Change,
    DiffFindings,
    breaking,
)
from codegen.diff.proto_files import ProtoField, ProtoFile, ProtoType

#: Types with the same bytes, from the narrower to the wider; a wider value is cut where a narrower
#: one is read.
WIDTHS = (
    ("bool", "int32", "int64"),
    ("bool", "uint32", "uint64"),
    ("sint32", "sint64"),
    ("string", "bytes"),
)
BOTH = (CLIENTS, SERVERS)


def compare_protos(
    old: ProtoFile, new: ProtoFile, uses: Mapping[str, set[str]], name: str, findings: DiffFindings
) -> None:
    """Compare two files. `uses` says which way each message travels; one that is not named may
    travel either way.
    """
    if old.package != new.package:
        findings.add(
            [
                breaking(
                    "proto-package",
                    name,
                    f"the package was {old.package}, is {new.package}",
                    PYTHON,
                )
            ]
        )
    if old.syntax != new.syntax:
        findings.add(
            [breaking("proto-syntax", name, f"the syntax was {old.syntax}, is {new.syntax}", *BOTH)]
        )
    old_reach, new_reach = reach(old, uses), reach(new, uses)
    for type_name in [*old.types, *(key for key in new.types if key not in old.types)]:
        before, after = old.types.get(type_name), new.types.get(type_name)
        for use in old_reach.get(type_name, set()) | new_reach.get(type_name, set()) or {
            SENT,
            RECEIVED,
        }:
            findings.add(compare_types(before, after, f"{name}#/{type_name}", use), use)


def reach(file: ProtoFile, uses: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return which way each type travels, alone or inside another."""
    found: dict[str, set[str]] = {}
    for root, ways in uses.items():
        pending = [root.removeprefix(f"{file.package}.")]
        while pending:
            name = pending.pop()
            if name in file.types and not ways <= found.get(name, set()):
                found[name] = found.get(name, set()) | ways
                pending += [
                    inner
                    for item in file.types[name].fields
                    for inner in type_candidates(item.type, name)
                ]
    return found


def type_candidates(text: str, scope: str) -> list[str]:
    """Return the types that a field may mean: of a map both, and each also as nested in the
    message.
    """
    names = (
        text.removeprefix("map<").removesuffix(">").split(",")
        if text.startswith("map<")
        else [text]
    )
    return [candidate for name in names for candidate in (name, f"{scope}.{name}")]


def compare_types(
    old: ProtoType | None, new: ProtoType | None, where: str, use: str
) -> Iterator[Change]:
    if old is None and new is not None:
        yield breaking("proto-type-added", where, f"the {new.kind} is new")
    elif old is not None and new is None:
        yield breaking("proto-type-removed", where, f"the {old.kind} is gone", PYTHON)
    elif old is not None and new is not None and old.kind != new.kind:
        yield breaking("proto-type", where, f"is a {new.kind}, was a {old.kind}", *BOTH)
    elif old is not None and new is not None:
        yield from compare_fields(old, new, where, use)
        yield from compare_reservations(old, new, where)


def compare_fields(old: ProtoType, new: ProtoType, where: str, use: str) -> Iterator[Change]:
    """Compare fields by number, as on the wire; a field with a new number is reported once."""
    before, after = ({item.number: item for item in owner.fields} for owner in (old, new))
    moved = number_changes(old, new)
    for name, (first, then) in moved.items():
        yield breaking(
            "proto-number",
            f"{where}/{name}",
            f"{name} has the number {then}, had {first}",
            *BOTH,
            PYTHON,
        )
    for number in sorted(before.keys() | after.keys()):
        was, now = before.get(number), after.get(number)
        if was is not None and now is not None:
            yield from compare_field(was, now, f"{where}/{now.name}", use, moved.keys())
        elif was is not None and was.name not in moved:
            yield field_removal(was, new, where, use)
        elif now is not None and now.name not in moved:
            yield new_field(now, old, where, use)


def number_changes(old: ProtoType, new: ProtoType) -> dict[str, tuple[int, int]]:
    before, after = ({item.name: item.number for item in owner.fields} for owner in (old, new))
    return {
        name: (before[name], after[name])
        for name in before
        if name in after and before[name] != after[name]
    }


def field_removal(item: ProtoField, new: ProtoType, where: str, use: str) -> Change:
    """Report a removed field: the other side reads the default now, without an error."""
    note = "" if item.number in new.reserved else ", and its number is not reserved"
    losers = (NARROWER[use],) if new.kind == "enum" else BOTH if use == SENT else (CLIENTS,)
    return breaking(
        "proto-removed", f"{where}/{item.name}", f"{item} is gone{note}", *losers, PYTHON
    )


def new_field(item: ProtoField, old: ProtoType, where: str, use: str) -> Change:
    if {item.number, item.name} & old.reserved:
        return breaking("proto-reserved", f"{where}/{item.name}", f"{item} was reserved", *BOTH)
    breaks = (SERVERS,) if old.kind == "enum" and use == SENT else ()
    return breaking("proto-added", f"{where}/{item.name}", f"{item} is new", *breaks)


def compare_field(
    old: ProtoField, new: ProtoField, where: str, use: str, moved: Collection[str]
) -> Iterator[Change]:
    """Compare the two fields of one number."""
    if old.name != new.name and old.name not in moved and new.name not in moved:
        yield breaking(
            "proto-renamed",
            where,
            f"number {new.number} is called {new.name}, was {old.name}",
            PYTHON,
        )
    if old.type != new.type:
        what = f"number {new.number} is {new.type}, was {old.type}"
        yield breaking("proto-type", where, what, *type_breaks(old.type, new.type, use))
    if old.label != new.label:
        what = f"number {new.number} is {new.label or 'singular'}, was {old.label or 'singular'}"
        breaks = (*BOTH, PYTHON) if "repeated" in (old.label, new.label) else (PYTHON,)
        yield breaking("proto-label", where, what, *breaks)
    if old.oneof != new.oneof:
        what = f"number {new.number} is in {new.oneof or 'no oneof'}, was in {old.oneof or 'none'}"
        yield breaking(
            "proto-oneof",
            where,
            what,
            *((*BOTH, PYTHON) if not (old.oneof and new.oneof) else (PYTHON,)),
        )


def type_breaks(old: str, new: str, use: str) -> tuple[str, ...]:
    """Return the levels that another type breaks: one side and Python where the bytes are the same,
    else all of them.
    """
    for family in WIDTHS:
        if old in family and new in family:
            return (WIDER[use] if family.index(new) > family.index(old) else NARROWER[use], PYTHON)
    return (*BOTH, PYTHON)


def compare_reservations(old: ProtoType, new: ProtoType, where: str) -> Iterator[Change]:
    used = {item.number for item in new.fields} | {item.name for item in new.fields}
    for item in sorted(old.reserved - new.reserved - used, key=str):
        yield breaking("proto-unreserved", where, f"{item} is no longer reserved")
