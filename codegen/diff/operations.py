"""Compares two documents operation by operation: address, parameters, body, answers, credential."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from codegen.diff.answers import compare_responses
from codegen.diff.bodies import compare_bodies
from codegen.diff.findings import (
    CLIENTS,
    PYTHON,
    RECEIVED,
    SENT,
    SERVERS,
    Change,
    DiffFindings,
    breaking,
)
from codegen.diff.nodes import (
    SCHEMAS,
    child,
    children,
    elements,
    follow,
    is_set,
    node_at,
    spell,
    value_of,
)
from codegen.diff.parameters import compare_parameters, name_places
from codegen.diff.schemas import SchemaComparison
from codegen.diff.security import compare_security
from codegen.document import DocumentNode, is_list, is_mapping

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
#: What an operation may have that this comparison does not read.
UNREAD = ("callbacks", "servers")


@dataclass(frozen=True)
class RawOperation:
    """An operation of the raw document."""

    path: str
    method: str
    item: DocumentNode
    node: DocumentNode

    @property
    def name(self) -> str:
        return str(value_of(self.node, "operationId") or f"{self.method.upper()} {self.path}")

    @property
    def address(self) -> tuple[str, str]:
        """Return method and path as they are on the wire, where parameters have no names."""
        return self.method, re.sub(r"{[^}]*}", "{}", self.path)

    @property
    def parameters(self) -> dict[str, DocumentNode]:
        """Return the parameters by place, with those of the path that the operation does not
        replace.
        """
        own = [follow(node) for node in elements(self.node, "parameters")]
        keys = {(value_of(node, "in"), value_of(node, "name")) for node in own}
        shared = [follow(node) for node in elements(self.item, "parameters")]
        inherited = [
            node for node in shared if (value_of(node, "in"), value_of(node, "name")) not in keys
        ]
        return name_places(inherited + own, self.path)


def operations_of(root: DocumentNode) -> list[RawOperation]:
    return [
        RawOperation(path, method, item, item[method])
        for path, item in children(root, "paths").items()
        for method in METHODS
        if method in item.value
    ]


def compare_operations(old: DocumentNode, new: DocumentNode, findings: DiffFindings) -> None:
    """Compare every operation, and every schema that one of them sends or answers."""
    sent, received = SchemaComparison(SENT), SchemaComparison(RECEIVED)
    before, after = operations_of(old), operations_of(new)
    partners = match_operations(before, after)
    for operation in before:
        if operation.node.pointer not in {was.node.pointer for was, _ in partners}:
            what = f"the operation {operation.name} is gone"
            findings.add(
                [breaking("operation-removed", operation.node.pointer, what, CLIENTS, PYTHON)]
            )
    for operation in after:
        if operation.node.pointer not in {now.node.pointer for _, now in partners}:
            findings.add([new_operation(operation)])
    for was, now in partners:
        findings.add(compare_operation(was, now))
        findings.add(compare_security(was.node, now.node))
        findings.add(compare_parameters(was.parameters, now.parameters, sent), SENT)
        findings.add(compare_bodies(was.node, now.node, sent), SENT)
        findings.add(compare_responses(was.node, now.node, received), RECEIVED)
        findings.add(compare_results(was.node, now.node, received), RECEIVED)
    compare_leftovers(old, new, received, findings)


def match_operations(
    before: list[RawOperation], after: list[RawOperation]
) -> list[tuple[RawOperation, RawOperation]]:
    """Match by address, then by name: an operation that moved is still the same one."""
    by_address = {operation.address: operation for operation in after}
    partners = [
        (operation, by_address[operation.address])
        for operation in before
        if operation.address in by_address
    ]
    taken = {now.node.pointer for _, now in partners}
    left = {operation.name: operation for operation in after if operation.node.pointer not in taken}
    matched = {was.node.pointer for was, _ in partners}
    return partners + [
        (was, left[was.name])
        for was in before
        if was.node.pointer not in matched and was.name in left
    ]


def new_operation(operation: RawOperation) -> Change:
    optional = is_set(operation.node, "x-optional")
    what = f"{operation.name} is a new {'optional' if optional else 'mandatory'} operation"
    return breaking(
        "operation-added", operation.node.pointer, what, *(() if optional else (SERVERS,))
    )


def compare_operation(old: RawOperation, new: RawOperation) -> Iterator[Change]:
    """Compare an operation's address and properties, without its content."""
    where = new.node.pointer
    if old.address != new.address:
        was, now = f"{old.method.upper()} {old.path}", f"{new.method.upper()} {new.path}"
        yield breaking(
            "operation-moved", where, f"{new.name} was {was}, is {now}", CLIENTS, SERVERS
        )
    if is_set(old.node, "x-optional") != is_set(new.node, "x-optional"):
        optional = is_set(new.node, "x-optional")
        what = f"{new.name}: {'servers may lack it now' if optional else 'no longer optional'}"
        yield breaking("optional", where, what, CLIENTS if optional else SERVERS)
    if is_set(old.node, "deprecated") != is_set(new.node, "deprecated"):
        yield breaking(
            "deprecated",
            where,
            f"{new.name}: "
            f"{'deprecated' if is_set(new.node, 'deprecated') else 'no longer deprecated'}",
        )
    for keyword in UNREAD:
        if value_of(old.node, keyword) != value_of(new.node, keyword):
            what = f"{keyword} of {new.name} are others; what that means is not known"
            yield breaking("unknown-keyword", where, what, CLIENTS, SERVERS)


def compare_results(
    old: DocumentNode, new: DocumentNode, received: SchemaComparison
) -> Iterator[Change]:
    """Compare the promised result of an operation's future."""
    before, after = child(old, "x-result"), child(new, "x-result")
    if before is not None and after is not None:
        yield from received.compare(before, after)
    elif before is not None or after is not None:
        values = [spell(node.value) if node is not None else "nothing" for node in (before, after)]
        yield breaking(
            "result",
            new.pointer,
            f"the result was {values[0]}, is {values[1]}",
            CLIENTS,
            SERVERS,
            PYTHON,
        )


def compare_leftovers(
    old: DocumentNode, new: DocumentNode, received: SchemaComparison, findings: DiffFindings
) -> None:
    """Compare the components that no operation names, as values that clients receive."""
    before, after = (
        children(root["components"], "schemas") if "components" in root else {}
        for root in (old, new)
    )
    reached = {name for root in (old, new) for name in names_in_use(root)}
    for name in before.keys() & after.keys() - reached:
        findings.add(received.compare_component(before[name], after[name]), RECEIVED)


def names_in_use(root: DocumentNode) -> set[str]:
    """Return the schemas that an operation refers to, by whatever way."""
    found: set[str] = set()
    pending: list[Any] = [root.value.get("paths")]
    while pending:
        value = pending.pop()
        if is_list(value):
            pending += value
        elif is_mapping(value):
            pending += value.values()
            target = value.get("$ref")
            if isinstance(target, str) and target not in found:
                found.add(target)
                pending.append(node_at(root, target).value)
    return {target.removeprefix(SCHEMAS) for target in found}
