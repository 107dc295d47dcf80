"""Where tests find their modules: pytest's own setting names the folders, and no file changes the path by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CHANGES = {"append", "clear", "extend", "insert", "pop", "remove"}


def is_path(node: ast.AST) -> bool:
    """Whether an expression is ``sys.path``, or a part of it."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(node, ast.Attribute) and node.attr == "path" and getattr(node.value, "id", None) == "sys"


def changes(tree: ast.AST) -> Iterator[int]:
    """The lines that change ``sys.path``."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [getattr(node, "target", node)]
        if isinstance(node, ast.Assign | ast.Delete | ast.AugAssign) and any(map(is_path, targets)):
            yield node.lineno
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES
        if is_method and is_path(node.func.value):
            yield node.lineno


@pytest.mark.parametrize("source", ["sys.path.insert(0, x)", "sys.path[:0] = [x]", "sys.path += [x]", "del sys.path[0]"])
def test_changes_are_found(source: str) -> None:
    """Every way of changing the path is seen."""
    assert list(changes(ast.parse(source))) == [1]


def test_no_test_changes_the_path() -> None:
    """``pythonpath`` in pyproject.toml is enough; scripts find their neighbours, or get PYTHONPATH from who starts them."""
    found = {
        f"{file.relative_to(TESTS)}:{line}" for file in TESTS.rglob("*.py") for line in changes(ast.parse(file.read_text()))
    }
    assert found == set()
