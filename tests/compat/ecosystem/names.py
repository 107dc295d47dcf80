"""The dotted names under `tinker` that Python sources use:
`python tests/compat/ecosystem/names.py FOLDER ...`.

Prints a TOML list, the form of names_used.toml, which `tests/compat/test_names_used.py` holds
against this package. Imports count, and chains of attributes that begin at an imported name; what a
variable holds is not looked into.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "tinker"


def find_names(source: str) -> set[str]:
    """Return the dotted names that this source uses; none where it is not Python of today."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    imported, aliases = set[str](), dict[str, str]()
    for node in ast.walk(tree):
        for name, alias in _imports(node):
            imported.add(name)
            aliases[alias] = PACKAGE if alias == PACKAGE else name
    chains = {chain for node in ast.walk(tree) if (chain := _dotted(node, aliases)) is not None}
    return imported | chains


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each imported name of the package, and its alias in the source."""
    if isinstance(node, ast.Import):
        yield from ((one.name, one.asname or PACKAGE) for one in node.names if _is_ours(one.name))
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and _is_ours(node.module or ""):
        yield from (
            (f"{node.module}.{one.name}", one.asname or one.name)
            for one in node.names
            if one.name != "*"
        )


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """Return the whole name of a chain of attributes that begins at an import."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, aliases)
        return owner and f"{owner}.{node.attr}"
    return aliases.get(node.id) if isinstance(node, ast.Name) else None


def find_names_in(folders: Iterable[Path]) -> list[str]:
    """Return the names that the Python files of these folders use, sorted."""
    files = (path for folder in folders for path in folder.rglob("*.py"))
    return sorted(
        set[str]().union(*(find_names(path.read_text(errors="replace")) for path in files))
        - {PACKAGE}
    )


if __name__ == "__main__":
    for name in find_names_in(map(Path, sys.argv[1:])):
        print(f'  "{name}",')
