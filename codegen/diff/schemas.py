"""Compares two schemas as sets of values: the newly allowed ones, and those no longer allowed.

Owns the walk: components are compared once for each use, and recursion ends. What is about one
value is in `limits`, what is about objects in `records`, what is about several alternatives in
`alternatives`.
"""

from __future__ import annotations

from collections.abc import Iterator

from codegen.diff.alternatives import (
    Alternative,
    Matched,
    alternatives,
    compare_tags,
    is_any,
    is_open_union,
    match,
)
from codegen.diff.findings import CLIENTS, PYTHON, RECEIVED, Change, breaking, difference
from codegen.diff.limits import (
    LOWER,
    UNORDERED,
    UPPER,
    compare_formats,
    compare_limits,
    compare_values,
)
from codegen.diff.nodes import child, elements, follow, is_set, schema_name, spell, value_of
from codegen.diff.records import compare_properties, compare_site
from codegen.document import DocumentNode, is_mapping

#: Keywords that are compared one by one; every other is compared as it stands, but for those that
#: only explain.
UNDERSTOOD = frozenset(
    {
        "$ref",
        "type",
        "format",
        "contentEncoding",
        "enum",
        "const",
        "default",
        "properties",
        "required",
        "items",
        "prefixItems",
    }
    | {
        "additionalProperties",
        "oneOf",
        "anyOf",
        "allOf",
        "if",
        "then",
        "else",
        "discriminator",
        "contentSchema",
    }
    | {*LOWER, *UPPER, *UNORDERED}
)
EXPLAINING = frozenset(
    {
        "description",
        "title",
        "summary",
        "example",
        "examples",
        "externalDocs",
        "deprecated",
        "$comment",
        "xml",
        "readOnly",
        "writeOnly",
    }
)


class SchemaComparison:
    """Compares schemas that travel one way; remembers which components it has met."""

    def __init__(self, use: str) -> None:
        self.use = use
        self._met: set[tuple[str, str]] = set()

    def compare(self, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
        """Compare two schemas, and everything below them that was not compared before."""
        yield from compare_site(old, new, self.use)
        names = schema_name(old), schema_name(new)
        if names[0] and names[1] and names[0] != names[1]:
            yield from self._compare_names(old, new, names)
        elif names[0] and names[1]:
            yield from self.compare_component(follow(old), follow(new))
        else:
            yield from self._compare_forms(old, new)

    def _loses(self, old: DocumentNode, new: DocumentNode) -> bool:
        return any(change.narrower for change in SchemaComparison(self.use).compare(old, new))

    def compare_component(self, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
        """Compare two schemas once, however often they are referred to."""
        if (old.pointer, new.pointer) not in self._met:
            self._met.add((old.pointer, new.pointer))
            yield from compare_site(old, new, self.use)
            yield from self._compare_forms(old, new)

    def _compare_names(
        self, old: DocumentNode, new: DocumentNode, names: tuple[str | None, ...]
    ) -> Iterator[Change]:
        """Say at the reference that another schema is meant, with the first thing that is different
        about it.
        """
        inner = list(SchemaComparison(self.use).compare(follow(old), follow(new)))
        what = f"was {names[0]}, is {names[1]}"
        wider, narrower = (
            any(change.wider for change in inner),
            any(change.narrower for change in inner),
        )
        breaks = frozenset({PYTHON}).union(*(change.breaks for change in inner))
        if any(change.rule == "property-removed" for change in inner):
            breaks |= {CLIENTS}  # a property that readers use may be absent, but not removed
        reasons = [change.what for change in inner if change.breaks] or [
            "with the same values under another name"
        ]
        yield Change("other-schema", new.pointer, f"{what}: {reasons[0]}", breaks, wider, narrower)

    def _compare_forms(self, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
        """Compare schemas of which one at most is a mere reference."""
        before, after = alternatives(old), alternatives(new)
        if is_lone_reference(before, after):
            before = alternatives(follow(old))
        elif is_lone_reference(after, before):
            after = alternatives(follow(new))
        if len(before) == len(after) == 1:
            yield from self._compare_one(before[0], after[0])
        elif is_any(before) or is_any(after):
            yield from self._compare_any(new, before, after)
        else:
            yield from self._compare_several(old, new, match(before, after))
        yield from self._compare_rest(old, new)

    def _compare_any(
        self, new: DocumentNode, before: list[Alternative], after: list[Alternative]
    ) -> Iterator[Change]:
        if is_any(before) != is_any(after):
            what = (
                "any value may be here now"
                if is_any(after)
                else "not every value may be here any more"
            )
            yield difference(
                "type",
                new.pointer,
                what,
                self.use,
                wider=is_any(after),
                narrower=is_any(before),
                typed=True,
            )

    def _compare_several(
        self, old: DocumentNode, new: DocumentNode, matched: Matched
    ) -> Iterator[Change]:
        for before, after in matched.both:
            yield from self._compare_one(before, after)
        was_open, is_open, typed = is_open_union(old), is_open_union(new), not is_set(new, "x-any")
        if was_open != is_open:
            what = (
                "members that are not listed may appear now"
                if is_open
                else "members that are not listed are refused now"
            )
            rule = "union-opened" if is_open else "union-closed"
            yield difference(
                rule, new.pointer, what, self.use, wider=is_open, narrower=was_open, typed=typed
            )
        for item in matched.gone:
            kept = self._is_kept(item, matched.after, is_open)
            what = f"{item.label} is no longer one of the alternatives"
            yield difference(
                "alternative-removed", new.pointer, what, self.use, narrower=not kept, typed=typed
            )
        for item in matched.new:
            kept = self._is_kept(item, matched.before, was_open)
            what = f"{item.label} is a new alternative"
            yield difference(
                "alternative-added", new.pointer, what, self.use, wider=not kept, typed=typed
            )
        yield from compare_tags(old, new, self.use)

    def _is_kept(self, item: Alternative, others: list[Alternative], is_open: bool) -> bool:
        """Return whether the values of one alternative are allowed without it.

        Objects have a meaning of their own, although one may fit the form of another: only an open
        union has a place for them.
        """
        if schema_name(item.node) or item.type == "object":
            return is_open and self.use == RECEIVED
        return any(not self._loses(item.node, other.node) for other in others)

    def _compare_one(self, old: Alternative, new: Alternative) -> Iterator[Change]:
        if (
            old.condition is not None
            and new.condition is not None
            and old.condition != new.condition
        ):
            what = (
                f"{new.label} is told by {spell(new.condition)}, was told by {spell(old.condition)}"
            )
            yield difference(
                "condition", new.node.pointer, what, self.use, wider=True, narrower=True
            )
        if schema_name(old.node) or schema_name(new.node):
            yield from self.compare(old.node, new.node)
        elif old.type != new.type:
            yield from self._compare_types(old, new)
        else:
            yield from compare_values(old, new, self.use)
            yield from compare_limits(old.node, new.node, self.use)
            yield from compare_formats(old.node, new.node, self.use)
            yield from self._compare_parts(old.node, new.node)

    def _compare_types(self, old: Alternative, new: Alternative) -> Iterator[Change]:
        wider = new.type is None or (old.type, new.type) != ("number", "integer")
        narrower = old.type is None or (old.type, new.type) != ("integer", "number")
        wider, narrower = wider and old.type is not None, narrower and new.type is not None
        what = f"the type was {old.type or 'any'}, is {new.type or 'any'}"
        yield difference(
            "type", new.node.pointer, what, self.use, wider=wider, narrower=narrower, typed=True
        )

    def _compare_parts(self, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
        """Compare the parts: items, properties, and every additional schema."""
        for keyword in ("items", "contentSchema"):
            yield from self._compare_part(keyword, old, new)
        yield from self._compare_lists("prefixItems", old, new)
        yield from self._compare_lists("allOf", old, new)
        yield from compare_properties(old, new, self.use, self.compare)
        yield from self._compare_additional(old, new)

    def _compare_part(self, keyword: str, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
        before, after = child(old, keyword), child(new, keyword)
        if before is not None and after is not None:
            yield from self.compare(before, after)
        elif before is not None or after is not None:
            what = f"{keyword} {'is new' if after is not None else 'is gone'}"
            yield difference(
                keyword,
                new.pointer,
                what,
                self.use,
                wider=after is None,
                narrower=before is None,
                typed=True,
            )

    def _compare_lists(
        self, keyword: str, old: DocumentNode, new: DocumentNode
    ) -> Iterator[Change]:
        before, after = elements(old, keyword), elements(new, keyword)
        for left, right in zip(before, after, strict=False):
            yield from self.compare(left, right)
        if len(before) != len(after):
            what = f"{keyword} has {len(after)} members, had {len(before)}"
            fewer = len(after) < len(before)
            yield difference(
                keyword, new.pointer, what, self.use, wider=fewer, narrower=not fewer, typed=True
            )

    def _compare_additional(self, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
        """Compare the values of a map, or the additional properties of an object."""
        before, after = (
            value_of(old, "additionalProperties", True),
            value_of(new, "additionalProperties", True),
        )
        if is_mapping(before) and is_mapping(after):
            yield from self.compare(old["additionalProperties"], new["additionalProperties"])
        elif before != after:
            wider, narrower = before is False or after is True, after is False or before is True
            what = f"additionalProperties was {spell(before)}, is {spell(after)}"
            yield difference(
                "additional-properties",
                new.pointer,
                what,
                self.use,
                wider=wider,
                narrower=narrower,
                typed=True,
            )

    def _compare_rest(self, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
        """Report every changed keyword that is not understood as breaking clients and servers."""
        before, after = (
            {key: node.value[key] for key in unknown_keywords(node)} for node in (old, new)
        )
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                what = (
                    f"{key} was {spell(before.get(key))}, is {spell(after.get(key))}; what that "
                    "means is not known"
                )
                yield breaking("unknown-keyword", new.pointer, what, "clients", "servers")


def is_lone_reference(items: list[Alternative], others: list[Alternative]) -> bool:
    """Return whether a schema is one reference which is not among the alternatives of the other."""
    return (
        len(items) == 1
        and bool(schema_name(items[0].node))
        and items[0].label not in [other.label for other in others]
    )


def unknown_keywords(node: DocumentNode) -> list[str]:
    known = UNDERSTOOD | EXPLAINING
    return [
        key
        for key in (node.value if is_mapping(node.value) else {})
        if key not in known and not str(key).startswith("x-")
    ]
