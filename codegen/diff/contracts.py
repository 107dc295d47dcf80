"""Compares two contracts: documents, messages, and the names that Python has for them."""

from __future__ import annotations

from typing import Any

from codegen.diff.bodies import messages_of
from codegen.diff.findings import (
    CLIENTS,
    RECEIVED,
    SENT,
    SERVERS,
    Change,
    DiffFinding,
    DiffFindings,
    breaking,
)
from codegen.diff.nodes import children, elements, follow, value_of
from codegen.diff.operations import compare_operations, operations_of
from codegen.diff.proto import compare_protos
from codegen.diff.python_names import compare_names
from codegen.diff.sources import ContractSource
from codegen.document import DocumentNode


def compare(old: ContractSource, new: ContractSource) -> list[DiffFinding]:
    """Return everything that changed between two contracts, what breaks something first."""
    findings = DiffFindings()
    if old.document is not None and new.document is not None:
        compare_documents(old.document, new.document, findings)
    if old.proto is not None and new.proto is not None:
        compare_protos(
            old.proto,
            new.proto,
            uses_of_messages(old.document, new.document),
            new.proto_name,
            findings,
        )
    for kind, before, after in (
        ("document", old.document, new.document),
        (".proto", old.proto, new.proto),
    ):
        findings.add(one_side_only(kind, before is not None, after is not None))
    return list(findings)


def compare_documents(old: Any, new: Any, findings: DiffFindings) -> None:
    before, after = DocumentNode.of_document(old), DocumentNode.of_document(new)
    compare_operations(before, after, findings)
    findings.add(compare_names(before, after))
    findings.add(compare_servers(before, after))


def compare_servers(old: DocumentNode, new: DocumentNode) -> list[Change]:
    """Compare where the service is."""
    before, after = (
        [value_of(item, "url") for item in elements(root, "servers")] for root in (old, new)
    )
    gone = [
        breaking("server-removed", "#/servers", f"{url} is gone", CLIENTS)
        for url in before
        if url not in after
    ]
    return gone + [
        breaking("server-added", "#/servers", f"{url} is new") for url in after if url not in before
    ]


def one_side_only(kind: str, before: bool, after: bool) -> list[Change]:
    if before == after:
        return []
    what = f"the {kind} is {'new and' if after else 'gone, or'} not compared"
    return [breaking("not-compared", "#", what, *((CLIENTS, SERVERS) if before else ()))]


def uses_of_messages(*documents: Any) -> dict[str, set[str]]:
    """Return which way the protobuf messages travel that documents name."""
    uses: dict[str, set[str]] = {}
    for operation in (
        item
        for document in documents
        if document
        for item in operations_of(DocumentNode.of_document(document))
    ):
        for use, name in messages_in(operation.node):
            uses.setdefault(name, set()).add(use)
    return uses


def messages_in(operation: DocumentNode) -> list[tuple[str, str]]:
    bodies = [(RECEIVED, follow(answer)) for answer in children(operation, "responses").values()]
    if "requestBody" in operation:
        bodies.append((SENT, follow(operation["requestBody"])))
    media = [(use, item) for use, body in bodies for item in children(body, "content").values()]
    return [(use, name) for use, item in media for name in messages_of(item)]
