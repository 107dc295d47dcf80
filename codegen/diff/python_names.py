"""Compares what only Python sees of a contract: the names of functions, modules, classes, constants
and client methods.
"""

from __future__ import annotations

from collections.abc import Iterator

from codegen.diff.findings import PYTHON, Change, breaking
from codegen.diff.nodes import children, elements, is_set, pairs, spell, value_of
from codegen.diff.operations import RawOperation, match_operations, operations_of
from codegen.document import DocumentNode, is_mapping


def compare_names(old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
    """Compare the names that the bindings have."""
    for was, now in match_operations(operations_of(old), operations_of(new)):
        yield from compare_function(was, now)
        yield from compare_client_methods(was, now)
    before, after = (
        children(root["components"], "schemas") if "components" in root else {}
        for root in (old, new)
    )
    for name, left, right in pairs(before, after):
        if left is None and right is not None:
            yield breaking("class-added", right.pointer, f"the class {name} is new")
        elif left is not None and right is None:
            yield breaking("class-removed", left.pointer, f"the class {name} is gone", PYTHON)
        elif left is not None and right is not None:
            yield from compare_class(name, left, right)


def compare_function(old: RawOperation, new: RawOperation) -> Iterator[Change]:
    where = new.node.pointer
    if old.name != new.name:
        yield breaking(
            "function-renamed", where, f"the function {old.name} is called {new.name}", PYTHON
        )
    tags = [", ".join(map(str, value_of(operation.node, "tags") or [])) for operation in (old, new)]
    if tags[0] != tags[1]:
        yield breaking(
            "module", where, f"{new.name} is in the module {tags[1]}, was in {tags[0]}", PYTHON
        )
    if value_of(old.node, "x-reply") != value_of(new.node, "x-reply"):
        awaited = value_of(new.node, "x-reply") is not None
        now = (
            "takes the type of its answer now"
            if awaited
            else "no longer takes the type of its answer"
        )
        yield breaking("reply", where, f"{new.name} {now}", PYTHON)


def compare_client_methods(old: RawOperation, new: RawOperation) -> Iterator[Change]:
    """Compare the methods that clients have, and how each is made."""
    before, after = methods_of(old.node), methods_of(new.node)
    for name, was, now in pairs(before, after):
        if was is None and now is not None:
            yield breaking("method-added", now.pointer, f"clients have the method {name}")
        elif was is not None and now is None:
            yield breaking(
                "method-removed", was.pointer, f"clients have no method {name} any more", PYTHON
            )
        elif was is not None and now is not None:
            yield from compare_method(name, was, now)


def compare_method(name: str, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
    for keyword in ("path", "dates", "twin"):
        before, after = value_of(old, keyword), value_of(new, keyword)
        if before != after:
            breaks = () if keyword == "twin" and before is False else (PYTHON,)
            yield breaking(
                "method-changed",
                new.pointer,
                f"{keyword} of {name} was {spell(before)}, is {spell(after)}",
                *breaks,
            )


def methods_of(node: DocumentNode) -> dict[str, DocumentNode]:
    return {
        f"{value_of(item, 'client')}.{value_of(item, 'name')}": item
        for item in elements(node, "x-client")
    }


def compare_class(name: str, old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
    kinds = kind_of(old), kind_of(new)
    if kinds[0] != kinds[1]:
        yield breaking("class-kind", new.pointer, f"{name} is {kinds[1]}, was {kinds[0]}", PYTHON)
    before, after = (
        {key: node.value for key, node in children(owner, "x-constants").items()}
        for owner in (old, new)
    )
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            state = (
                "is gone"
                if key not in after
                else "is new"
                if key not in before
                else "has another value"
            )
            what = f"the constant {key} of {name} {state}"
            yield breaking("constants", new.pointer, what, *((PYTHON,) if key in before else ()))


def kind_of(node: DocumentNode) -> str:
    """Return a component's kind in Python: a record is a class, everything else the
    name of a type.
    """
    if not is_mapping(node.value) or is_set(node, "x-any"):
        return "opaque"
    return "a record" if "properties" in node.value and "if" not in node.value else "a type"
