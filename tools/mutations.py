"""Every small change to a module that a test should notice."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard, cast

Node: TypeAlias = ast.stmt | ast.expr

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutation:
    """One change: the line it is on, what is changed there, and the whole source
    with the change.
    """

    number: int  # of the line
    line: str
    change: str
    occurrence: int  # among equal changes of equal lines
    source: str

    @property
    def identity(self) -> tuple[str, str]:
        """What a list of mutations calls it."""
        return self.line, self.change


def mutations(source: str) -> list[Mutation]:
    """Every mutation of a module's source, in the order of the source."""
    lines = source.splitlines()
    found: list[Mutation] = []
    seen: Counter[tuple[str, str]] = Counter()
    for node, text in _changes(ast.parse(source)):
        line = lines[node.lineno - 1].strip()
        before = ast.unparse(node).splitlines()[0]
        change = f"{before} -> {text}"
        changed = _replaced(source, node, text if isinstance(node, ast.stmt) else f"({text})")
        found.append(Mutation(node.lineno, line, change, seen[line, change], changed))
        seen[line, change] += 1
    return found


def _replaced(source: str, node: Node, text: str) -> str:
    """Return the source with the text of one node exchanged; positions of a node
    count UTF-8 bytes.
    """
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    content = source.encode()
    return (content[:start] + text.encode() + content[end:]).decode()


def _changes(tree: ast.AST) -> Iterator[tuple[Node, str]]:
    """Each node that is changed, and its new text."""
    for node in filter(_has_place, _code(tree)):
        yield from ((node, text) for text in _texts(node))
        if isinstance(node, ast.If | ast.While) and not isinstance(
            node.test, ast.Constant | ast.Compare | ast.UnaryOp
        ):
            yield node.test, f"not ({ast.unparse(node.test)})"


def _has_place(node: ast.AST) -> TypeGuard[Node]:
    return isinstance(node, ast.stmt | ast.expr)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that is executed: no assertions, f-strings, and nothing for type checkers only.

    What only declares is no part of it either: annotations, decorators and the arguments of
    classes.
    """
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or (
            isinstance(node, ast.ClassDef) and name == "keywords"
        ):
            continue
        children = cast("list[object]", value) if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, ast.AST) and not _is_passed_over(child):
                yield from _code(child)


def _is_passed_over(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Expr | ast.Assign) and ast.unparse(node).startswith(
        ("logger.debug(", "__tracebackhide__")
    ):
        return True
    return isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Global)


def _texts(node: Node) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield ast.unparse(ast.Compare(node.left, [COMPARISONS[type(op)]()], node.comparators))
        case ast.BoolOp():
            yield ast.unparse(
                ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            )
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            yield ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield ast.unparse(node.operand)
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() | float() as value):
            yield repr(value + 1 if abs(value) < 10 else value * 3)
        case ast.IfExp():
            yield ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "return None"
        case (
            ast.Expr(value=ast.Call() | ast.Await())
            | ast.AugAssign()
            | ast.Raise()
            | ast.Continue()
        ):
            yield "pass"
        case _:
            return
