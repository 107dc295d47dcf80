"""docs/reference/methods.md: the methods of clients by operation, with the types that they send and
return.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from codegen.bindings import python_name
from codegen.document import DocumentNode
from codegen.files import Wanted
from codegen.operations import OperationSpec, read_operations
from codegen.spelling import spell_nulls

HEAD = """# Methods and types

Each row is one operation of the contract: the methods that call it, its method and path, the type
of its request body, and the type of its result. Types are in `tinker.types` or
`tinker_wire.models`. Where a request is answered with a future, the result is what the future
resolves to. An operation without a method is called by the client itself; its function is in
`tinker_wire.api`.

`python -m codegen generate` writes this page from `openapi.yaml`; do not edit it.
"""
TABLE = "| Method | Operation | Request | Result |\n|---|---|---|---|"


def make_page(root: Path, document: Any) -> Wanted:
    """Return the text of the page."""
    operations = read_operations(DocumentNode.of_document(spell_nulls(document)), python_name, [])
    return {root / "docs" / "reference" / "methods.md": write_page(operations)}


def write_page(operations: list[OperationSpec]) -> str:
    parts = [HEAD.rstrip()]
    for tag in dict.fromkeys(operation.tag for operation in operations):
        rows = [write_row(operation) for operation in operations if operation.tag == tag]
        parts.append("\n".join([f"## {tag.replace('_', ' ').capitalize()}\n", TABLE, *rows]))
    return "\n\n".join(parts) + "\n"


def write_row(operation: OperationSpec) -> str:
    address = f"{operation.method} {operation.path}"
    cells = (
        operation.client_methods,
        [address],
        list_sent_types(operation),
        list_returned_types(operation),
    )
    return f"| {' | '.join(', '.join(f'`{name}`' for name in cell) or '-' for cell in cells)} |"


def list_sent_types(operation: OperationSpec) -> Iterator[str]:
    if operation.body is not None:
        yield operation.body
    if operation.binary:
        yield "bytes"


def list_returned_types(operation: OperationSpec) -> Iterator[str]:
    if operation.result or operation.reply:
        yield str(operation.result or operation.reply)
    elif operation.response_media_types:
        yield "bytes"
