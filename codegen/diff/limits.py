"""Compares a schema's restrictions of one value: limits, formats, listed values."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.diff.alternatives import Alternative, values_in
from codegen.diff.findings import SENT, Change, breaking, difference
from codegen.diff.nodes import is_set, spell, value_of
from codegen.document import DocumentNode

LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")
UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")
#: A limit without an order: another value is neither more nor less.
UNORDERED = ("pattern", "multipleOf", "uniqueItems", "contentMediaType")
#: How many bits a format has; the formats without limit of their own say which type to read a value
#: into.
BITS = {"int32": 32, "int64": 64, "float": 32, "double": 64}
ADVICE = frozenset({None, "int64", "double", "password", "uri"})
#: Formats that are another Python type than text.
CLASSES = frozenset({"date-time", "byte", "binary"})


def compare_limits(old: DocumentNode, new: DocumentNode, use: str) -> Iterator[Change]:
    """Compare the limits of two schemas of one type."""
    for keyword in (*LOWER, *UPPER, *UNORDERED):
        before, after = value_of(old, keyword), value_of(new, keyword)
        if before != after:
            wider, narrower = direction_of(keyword, before, after)
            what = f"{keyword} was {limit_text(before)}, is {limit_text(after)}"
            typed = is_set(old, "x-validate") and is_set(new, "x-validate")
            yield difference(
                "limit", new.pointer, what, use, wider=wider, narrower=narrower, typed=typed
            )


def direction_of(keyword: str, before: object, after: object) -> tuple[bool, bool]:
    """Return whether another limit lets more through, and whether it lets less through."""
    if before is None or after is None:
        return after is None, before is None
    numbers = isinstance(before, (int, float)) and isinstance(after, (int, float))
    if numbers and keyword not in UNORDERED:
        grows = float(str(after)) > float(str(before))
        return (not grows, grows) if keyword in LOWER else (grows, not grows)
    return (True, True) if keyword != "uniqueItems" else (before is True, after is True)


def limit_text(value: object) -> str:
    return "not limited" if value is None else spell(value)


def compare_formats(old: DocumentNode, new: DocumentNode, use: str) -> Iterator[Change]:
    """Compare how a value is spelled: `format` and `contentEncoding`."""
    for keyword in ("format", "contentEncoding"):
        before, after = value_of(old, keyword), value_of(new, keyword)
        if before == after:
            continue
        wider, narrower = format_direction(before, after)
        change = difference(
            "format",
            new.pointer,
            f"{keyword} was {before or 'none'}, is {after or 'none'}",
            use,
            wider=wider,
            narrower=narrower,
        )
        if keyword == "contentEncoding" or {before, after} & CLASSES:
            change = breaking(change.rule, change.pointer, change.what, *change.breaks, "python")
        yield change


def format_direction(before: str | None, after: str | None) -> tuple[bool, bool]:
    """Return whether another format allows more, and whether it allows less."""
    if before in ADVICE and after in ADVICE:
        return False, False
    if before in BITS and after in BITS:
        return BITS[after] > BITS[before], BITS[after] < BITS[before]
    return before not in ADVICE, after not in ADVICE


def compare_values(old: Alternative, new: Alternative, use: str) -> Iterator[Change]:
    """Compare the values that are listed, by an enum or a constant.

    Where others may appear too, a listed value is one that every server takes, and one that readers
    know by name.
    """
    before, after = values_in(old.node), values_in(new.node)
    yield from compare_openness(old, new, before, after, use)
    if before is None or after is None:
        return
    where = new.node.pointer
    if "const" in old.node.value and "const" in new.node.value and before != after:
        what = f"the constant was {spell(before[0])}, is {spell(after[0])}"
        yield difference("constant", where, what, use, wider=True, narrower=True, typed=True)
        return
    for value in (value for value in after if value not in before):
        wider, what = use == SENT or not old.open, f"the value {spell(value)} is new"
        yield difference("value-added", where, what, use, wider=wider, typed=not old.open)
    for value in (value for value in before if value not in after):
        narrower, what = use == SENT or not new.open, f"the value {spell(value)} is gone"
        yield difference("value-removed", where, what, use, narrower=narrower, typed=not new.open)


def compare_openness(
    old: Alternative,
    new: Alternative,
    before: list[object] | None,
    after: list[object] | None,
    use: str,
) -> Iterator[Change]:
    """Compare whether values are listed at all, and whether the list is open."""
    was_open, is_open = old.open or before is None, new.open or after is None
    where = new.node.pointer
    if was_open and not is_open:
        yield difference(
            "values-closed",
            where,
            "values beyond the listed ones are refused now",
            use,
            narrower=True,
            typed=True,
        )
    elif is_open and not was_open:
        yield difference(
            "values-opened",
            where,
            "values beyond the listed ones may appear now",
            use,
            wider=True,
            typed=True,
        )
    elif before is not None and after is None:
        yield difference("values-unlisted", where, "the values are no longer listed", use)
