"""Find the records that users import from `tinker.types`: its exports that no
module of it defines.
"""

from __future__ import annotations

import ast
from pathlib import Path

MODULE = "tinker.types"


def public_modules(folder: Path) -> dict[str, str]:
    """Return name -> module for the exports that the package in a folder does not define; empty
    without a package.
    """
    if not folder.is_dir():
        return {}
    exported = names_to_export(parse(folder / "__init__.py"))
    defined = {name for path in folder.glob("*.py") for name in class_names(parse(path))}
    return {name: MODULE for name in exported if name not in defined}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_to_export(module: ast.Module) -> list[str]:
    """Return the names that a package's block for type checkers re-exports, each as itself, or
    assigns.
    """
    blocks = [
        node
        for node in module.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    statements = [statement for block in blocks for statement in block.body]
    imported = [
        alias for one in statements if isinstance(one, ast.ImportFrom) for alias in one.names
    ]
    assigned = [
        target for one in statements if isinstance(one, ast.Assign) for target in one.targets
    ]
    return [alias.name for alias in imported if alias.asname == alias.name] + [
        ast.unparse(target) for target in assigned
    ]


def class_names(module: ast.Module) -> list[str]:
    return [node.name for node in module.body if isinstance(node, ast.ClassDef)]
