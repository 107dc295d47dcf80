"""docs/coverage.md: what of the contract is known how, called by which method, served and tested.

Nothing is run: the client is searched for uses of the generated functions, the local server for its
handlers, the tests for the names of operations.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.document import METHODS, DocumentNode
from codegen.files import Wanted
from codegen.operations import read_client_method_names

API, RUNS = "tinker_wire.api", "tinker_wire.runs"
MOST_TESTS = 3
HEAD = """# Contract coverage

This page lists the operations of the contract. For each one it says:

- how it is known: recorded (tests/golden keeps an exchange of a real client), executed, read (in a
  client's code) or assumed;
- whether the local server serves it;
- what in the client uses it;
- which test files mention it. In addition, the tests in tests/contract check every recorded
  exchange.

`python -m codegen generate` writes the page from openapi.yaml and the sources; do not edit it.
"""


@dataclass(frozen=True)
class CoverageRow:
    """One operation and where it is found."""

    name: str
    tag: str
    address: str
    evidence: str
    notes: str
    client: list[str]
    served: bool
    tests: list[str]

    def entry(self) -> str:
        """Return the item of the list, which a narrow screen shows as well as a wide one."""
        evidence = self.evidence + (f" ({self.notes})" if self.notes else "")
        client = ", ".join(f"`{name}`" for name in self.client) or "-"
        return (
            f"- **`{self.name}`** `{self.address}`: {evidence}, "
            f"{'served' if self.served else 'not served'}\n"
            f"    - client: {client}\n"
            f"    - tests: {self.test_names() or '-'}"
        )

    def test_names(self) -> str:
        return ", ".join(self.tests[:MOST_TESTS]) + (
            " and others" if len(self.tests) > MOST_TESTS else ""
        )


def rows(document: Any, root: Path) -> list[CoverageRow]:
    """Return one row for each operation, in the order of the document."""
    client, served = client_uses(root / "tinker"), handlers(root / "tinker" / "local")
    tests = {path: path.read_text(encoding="utf-8") for path in test_files(root / "tests")}
    return [
        CoverageRow(
            name=(name := operation["operationId"]),
            tag=operation["tags"][0],
            address=f"{method.upper()} {path.removeprefix('/api/v1')}",
            evidence=re.split(r"[:;]", operation["x-evidence"])[0],
            notes=", ".join(
                key
                for key in ("optional", "deprecated")
                if operation.get(key) or operation.get(f"x-{key}")
            ),
            client=sorted(
                {
                    *client.get(name, ()),
                    *read_client_method_names(DocumentNode.of_document(operation)),
                }
            ),
            served=name in served,
            tests=sorted({test.stem for test, text in tests.items() if mentions(text, name)}),
        )
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def test_files(folder: Path) -> list[Path]:
    """Return test modules and their harnesses; tests of the generator and of the contract are about
    all operations.
    """
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if path.parent.name not in ("codegen", "contract")
    ]


def mentions(text: str, name: str) -> bool:
    """Return whether a test calls the operation, or names it or the end of its path in a string."""
    return re.search(rf"(?<=[\"'/.]){name}(?=[\"'(?])", text) is not None


def client_uses(folder: Path) -> dict[str, set[str]]:
    """Return operation -> the functions of the client that use its generated function."""
    uses: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        if "local" in path.relative_to(folder).parts:
            continue
        module = ast.parse(path.read_text(encoding="utf-8"))
        for name, user in uses_in(module, api_names(module)):
            uses.setdefault(name, set()).add(user or path.stem)
    return uses


def api_names(module: ast.Module) -> set[str]:
    """Return the names under which a module imports the modules that make requests."""
    return {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module == API or f"{node.module}.{alias.name}" == RUNS
    }


def uses_in(node: ast.AST, apis: set[str], owner: str = "") -> Iterator[tuple[str, str]]:
    """Yield (operation, qualified name of the class and function that mentions it)."""
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.Attribute)
            and isinstance(child.value, ast.Name)
            and child.value.id in apis
        ):
            yield child.attr, owner
        yield from uses_in(child, apis, inner_name(child, owner))


def inner_name(node: ast.AST, owner: str) -> str:
    """Return the qualified name of a definition; functions inside functions do not count."""
    in_function = owner != "" and owner.rpartition(".")[2].strip("_")[0].islower()
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not in_function:
        return f"{owner}.{node.name}".lstrip(".")
    return owner


def handlers(folder: Path) -> set[str]:
    """Return the names of the server's handlers, which are those of their operations; an empty set
    without a server.
    """
    modules = [
        ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("handlers/*.py"))
    ]
    return {
        node.name
        for module in modules
        for node in module.body
        if isinstance(node, ast.AsyncFunctionDef)
    }


def make_page(root: Path, document: Any) -> Wanted:
    """Return the text of docs/coverage.md."""
    return {root / "docs" / "coverage.md": text(rows(document, root), document)}


def text(table: Sequence[CoverageRow], document: Mapping[str, Any]) -> str:
    """Return the whole file."""
    parts = [f"{HEAD}\n{summary(table, document)}"]
    for tag in dict.fromkeys(row.tag for row in table):
        entries = "\n".join(row.entry() for row in table if row.tag == tag)
        parts.append(f"## {tag.replace('_', ' ').capitalize()}\n\n{entries}")
    return "\n\n".join(parts) + "\n"


def summary(table: Sequence[CoverageRow], document: Mapping[str, Any]) -> str:
    recorded = sum(row.evidence == "recorded" for row in table)
    called, served = sum(bool(row.client) for row in table), sum(row.served for row in table)
    return (
        f"{len(table)} operations and {len(document['components']['schemas'])} schemas: {recorded} "
        "operations are recorded, "
        f"{called} used by the client, {served} served by the local server."
    )
