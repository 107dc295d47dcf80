"""Compares objects: their properties, which ones are required, and the keywords of
each property.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from codegen.diff.findings import CLIENTS, PYTHON, SENT, SERVERS, Change, breaking, difference
from codegen.diff.nodes import children, follow, is_set, pairs, spell, value_of
from codegen.document import DocumentNode, is_mapping

Compare = Callable[[DocumentNode, DocumentNode], Iterator[Change]]
NOTHING = object()


def compare_properties(
    old: DocumentNode, new: DocumentNode, use: str, compare: Compare
) -> Iterator[Change]:
    """Compare the properties of two objects."""
    for name, before, after in pairs(children(old, "properties"), children(new, "properties")):
        if before is None and after is not None:
            yield new_property(name, after, has_to_be_given(new, name), use)
        elif before is not None and after is None:
            yield property_removal(name, before, has_to_be_given(old, name), use)
        elif before is not None and after is not None:
            yield from compare_needs(old, new, name, use)
            yield from compare(before, after)
    yield from compare_bare_names(old, new, use)


def has_to_be_given(record: DocumentNode, name: str) -> bool:
    """Return whether a property is required and has neither a default nor a constant.

    Clients of 2025 leave out defaults and tags, and a server for all clients takes that: only what
    a reader cannot fill in by itself must be there.
    """
    if name not in (value_of(record, "required") or []):
        return False
    property_ = children(record, "properties").get(name)
    return property_ is None or (
        "default" not in property_.value and "const" not in follow(property_).value
    )


def new_property(name: str, node: DocumentNode, required: bool, use: str) -> Change:
    rule, what = (
        "property-added",
        f"{name} is a new {'required' if required else 'optional'} property",
    )
    if not required:
        return breaking(rule, node.pointer, what)
    return breaking(rule, node.pointer, what, *((CLIENTS, PYTHON) if use == SENT else (SERVERS,)))


def property_removal(name: str, node: DocumentNode, required: bool, use: str) -> Change:
    """Report a removed property: a server ignores unknown ones; an optional one of a response may
    have been absent before.
    """
    breaks = (CLIENTS, PYTHON) if use == SENT or required else (PYTHON,)
    return breaking(
        "property-removed",
        node.pointer,
        f"the {'required' if required else 'optional'} property {name} is gone",
        *breaks,
    )


def compare_needs(old: DocumentNode, new: DocumentNode, name: str, use: str) -> Iterator[Change]:
    """Compare whether a property must be there."""
    was, now = has_to_be_given(old, name), has_to_be_given(new, name)
    where = new["properties"][name].pointer
    if now and not was:
        yield difference(
            "now-required", where, f"{name} is required now", use, narrower=True, typed=True
        )
    elif was and not now:
        yield difference(
            "no-longer-required",
            where,
            f"{name} is no longer required",
            use,
            wider=True,
            typed=True,
        )


def compare_bare_names(old: DocumentNode, new: DocumentNode, use: str) -> Iterator[Change]:
    """Compare the required names that are no property here, as in the conditions of a union."""
    known = {*children(old, "properties"), *children(new, "properties")}
    before, after = (set(value_of(node, "required") or []) - known for node in (old, new))
    for name in sorted(before ^ after):
        what = f"{name} is {'required now' if name in after else 'no longer required'}"
        yield difference(
            "bare-required", new.pointer, what, use, wider=name in before, narrower=name in after
        )


def compare_site(old: DocumentNode, new: DocumentNode, use: str) -> Iterator[Change]:
    """Compare what stands at the place of a value and is not about its type: default, secrecy,
    deprecation.
    """
    if not is_mapping(old.value) or not is_mapping(new.value):
        return
    yield from compare_defaults(old, new, use)
    if is_set(old, "x-secret") != is_set(new, "x-secret"):
        kept = is_set(new, "x-secret")
        what = (
            "is a secret now"
            if kept
            else "is no longer marked as a secret, so records and logs show it"
        )
        yield breaking("secret", new.pointer, what, *(() if kept else (CLIENTS, SERVERS, PYTHON)))
    if is_set(old, "x-validate") != is_set(new, "x-validate"):
        checked = is_set(new, "x-validate")
        what = f"the limits are {'checked' if checked else 'no longer checked'} by the bindings"
        yield breaking("validation", new.pointer, what, *((PYTHON,) if checked else ()))
    if is_set(new, "deprecated") != is_set(old, "deprecated"):
        yield breaking(
            "deprecated",
            new.pointer,
            "deprecated" if is_set(new, "deprecated") else "no longer deprecated",
        )
    if is_set(old, "x-any") != is_set(new, "x-any"):
        what = (
            f"the bindings {'no longer give' if is_set(new, 'x-any') else 'give'} the value a type"
        )
        yield breaking("opaque", new.pointer, what, PYTHON)


def compare_defaults(old: DocumentNode, new: DocumentNode, use: str) -> Iterator[Change]:
    """Compare defaults. Both sides read them from their document, so another default is another
    message.
    """
    before, after = old.value.get("default", NOTHING), new.value.get("default", NOTHING)
    if before is after or (before == after and type(before) is type(after)):
        return
    texts = ["none" if value is NOTHING else spell(value) for value in (before, after)]
    breaks = {CLIENTS, PYTHON} if use == SENT else {CLIENTS, SERVERS, PYTHON}
    if before is NOTHING:
        breaks = {PYTHON}
    yield breaking("default", new.pointer, f"the default was {texts[0]}, is {texts[1]}", *breaks)
