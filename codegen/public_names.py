"""Find the records that users import from `tinker.types`: what its `__all__` names and none of its modules defines."""

from __future__ import annotations

import ast
from pathlib import Path

MODULE = "tinker.types"


def public_modules(folder: Path) -> dict[str, str]:
    """Return name -> module for what the package in a folder exports and does not define; nothing where there is none."""
    if not folder.is_dir():
        return {}
    exported = names_to_export(parse(folder / "__init__.py"))
    defined = {name for path in folder.glob("*.py") for name in class_names(parse(path))}
    return {name: MODULE for name in exported if name not in defined}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names_to_export(module: ast.Module) -> list[str]:
    """Return the names in `__all__`."""
    lists = [node.value for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return [name for value in lists for name in ast.literal_eval(value)]


def class_names(module: ast.Module) -> list[str]:
    return [node.name for node in module.body if isinstance(node, ast.ClassDef)]
