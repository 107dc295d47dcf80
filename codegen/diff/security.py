"""Compares the credentials of operations, and the form of credentials."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.diff.findings import CLIENTS, SERVERS, Change, breaking
from codegen.diff.nodes import child, children, elements, follow, value_of
from codegen.document import DocumentNode, is_list, is_mapping

#: One way to be let in: every credential that is needed, each as it is on the wire. Nothing is
#: needed for the empty one.
Way = frozenset[str]


def compare_security(old: DocumentNode, new: DocumentNode) -> Iterator[Change]:
    """Compare the ways into an operation."""
    before, after = ways_into(old), ways_into(new)
    where = place_of(new)
    gone, added = before - after, after - before
    still_let_in = [way for way in gone if any(other <= way for other in after)]
    if gone and len(still_let_in) < len(gone):
        yield breaking(
            "credential-removed",
            where,
            f"{spell_ways(gone)} is no longer enough, {spell_ways(after)} is needed",
            CLIENTS,
        )
    known_before = [way for way in added if any(other <= way for other in before)]
    if added and len(known_before) < len(added):
        yield breaking(
            "credential-added",
            where,
            f"{spell_ways(added)} is enough now, was {spell_ways(before)}",
            SERVERS,
        )


def place_of(operation: DocumentNode) -> str:
    return f"{operation.pointer}/security" if "security" in operation.value else "#/security"


def ways_into(operation: DocumentNode) -> set[Way]:
    """Return every way into an operation; the document says it where the operation does not."""
    root = DocumentNode.of_document(operation.root)
    owner = operation if "security" in operation.value else root
    schemes = children(root["components"], "securitySchemes") if "components" in root else {}
    ways = [
        frozenset(
            credential(schemes.get(str(name)), str(name), scopes)
            for name, scopes in node.value.items()
        )
        for node in elements(owner, "security")
        if is_mapping(node.value)
    ]
    return set(ways) or {frozenset()}


def credential(scheme: DocumentNode | None, name: str, scopes: object) -> str:
    """Return a credential as it is on the wire: the name of the scheme is the document's own."""
    if scheme is None:
        return f"the undefined scheme {name}"
    scheme = follow(scheme)
    kind = value_of(scheme, "type")
    words = (
        ["in", "name"]
        if kind == "apiKey"
        else ["scheme"]
        if kind == "http"
        else ["openIdConnectUrl", "flows"]
    )
    details = [
        str(value_of(scheme, word)).lower() for word in words if child(scheme, word) is not None
    ]
    return " ".join([str(kind), *details, *(sorted(map(str, scopes)) if is_list(scopes) else [])])


def spell_ways(ways: set[Way]) -> str:
    return " or ".join(sorted(" with ".join(sorted(way)) or "no credential" for way in ways))
