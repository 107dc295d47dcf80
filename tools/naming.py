"""Two rules of naming, and where they are broken: a type name is defined once; no participle is the
name of a function.

A type is a class, or an alias at the top level of a module: ``X: TypeAlias = …``, ``type X = …``,
or ``X = …`` where X is in CamelCase and what is assigned is a subscription or a union. ``_Answer``
and ``Answer`` are one name to a reader, and here.

The name of a function is a participle when its first or its last word is one. Words are what stands
between underscores. A word is a participle when it is in IRREGULAR, or ends in ``ed``, is longer
than three letters and is not in NO_PARTICIPLES. Left out:

- properties, and what returns a bool, ``TypeGuard`` or ``TypeIs``: values and predicates may be
  named so;
- a name whose *last* word only is a participle and whose first word is a verb in the imperative or
  a preposition (IMPERATIVES): ``check_accepted``, ``is_closed``, ``from_encoded``;
- special methods, and those of a protocol that asyncio calls; overloads count once.

A property is what is decorated with a name that ends in ``property``, ``.setter``, ``.deleter`` or
``.getter``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from import_graph import parse


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IRREGULAR = _words(
    """
    begun bent bound borne bought broken brought built caught chosen done drawn driven eaten fallen
    felt forgotten found frozen given gone gotten grown heard held hidden kept known laid lain led
    lent lost made meant met overridden paid redone rewritten ridden rung said seen sent shaken
    shown slept sold sought spent spoken spun stolen stood stuck struck sunk sung swept sworn taken
    taught thought thrown told torn undone understood unwound withdrawn woken won worn wound written
    """
)
NO_PARTICIPLES = _words(
    """
    bed bleed breed embed exceed feed heed indeed need nested proceed red reed seed shed shred sled
    speed spread succeed weed
    """
)
IMPERATIVES = _words(
    """
    add answer as assert await build can cancel check clear close collect complete compute count
    create decode delete describe discard drop encode ensure evict expect fail fetch fill find
    forget from get handle has have if ignore is join list load log make mark merge must name needs
    note notify on open order parse poll raise read refuse reject remove repeat replace report
    require reset resolve restore return run sample save send set show skip sleep sort split store
    submit sum tell test to until wait wake warn was watch when where with without write
    """
)
OF_ASYNCIO = _words("connection_made connection_lost data_received eof_received")
_CAMEL_CASE = re.compile(r"_*[A-Z]\w*[a-z]\w*")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Definition:
    """A name that is defined at a line of a file."""

    name: str
    path: Path
    line: int


def python_files(folders: Iterable[Path]) -> list[Path]:
    """Every Python file below the folders, in order."""
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def find_types(paths: Iterable[Path]) -> dict[str, list[Definition]]:
    """Every type that is defined, by its name without leading underscores; a file counts once for
    each name.
    """
    found: dict[str, dict[Path, Definition]] = {}
    for path in paths:
        for name, line in _types(parse(path)):
            found.setdefault(name.lstrip("_"), {}).setdefault(path, Definition(name, path, line))
    return {name: sorted(places.values()) for name, places in sorted(found.items())}


def repeated_types(paths: Iterable[Path]) -> dict[str, list[Definition]]:
    """Return the types whose names are defined in more than one file."""
    return {name: places for name, places in find_types(paths).items() if len(places) > 1}


def _types(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in _top_level(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        elif (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and "TypeAlias" in ast.unparse(node.annotation)
        ):
            yield node.target.id, node.lineno
        elif (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
        ):
            if _CAMEL_CASE.fullmatch(node.targets[0].id) and isinstance(
                node.value, (ast.Subscript, ast.BinOp)
            ):
                yield node.targets[0].id, node.lineno
        elif type(node).__name__ == "TypeAlias":  # since Python 3.12
            yield ast.unparse(node).split()[1].partition("[")[0], node.lineno


def _top_level(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements outside classes and functions, those under ``if`` and ``try`` too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, (ast.If, ast.Try, ast.ExceptHandler)):
            yield from _top_level(child)


def find_functions(path: Path) -> Iterator[tuple[str, Function]]:
    """Every function of a file with its qualified name, nested ones and methods too."""
    yield from _functions(parse(path), "")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + child.name, child
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def find_participles(paths: Iterable[Path]) -> list[Definition]:
    """Return the functions that are named by a participle."""
    found: dict[tuple[Path, str], Definition] = {}
    for path in paths:
        for name, function in find_functions(path):
            if is_named_by_participle(function):
                found.setdefault((path, name), Definition(name, path, function.lineno))
    return list(found.values())


def is_named_by_participle(function: Function) -> bool:
    """Whether the rule at the top of this file says so."""
    words = function.name.strip("_").lower().split("_")
    if (
        function.name.startswith("__")
        or function.name in OF_ASYNCIO
        or is_value(function)
        or is_predicate(function)
    ):
        return False
    return is_participle(words[0]) or (is_participle(words[-1]) and words[0] not in IMPERATIVES)


def is_participle(word: str) -> bool:
    """Whether a word is the past participle of a verb."""
    return word in IRREGULAR or (
        word.endswith("ed") and len(word) > 3 and word not in NO_PARTICIPLES
    )


def is_value(function: Function) -> bool:
    """Whether it is a property."""
    decorators = (
        ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list
    )
    return any(
        name.endswith("property") or name in {"setter", "deleter", "getter"} for name in decorators
    )


def is_predicate(function: Function) -> bool:
    """Whether it answers yes or no."""
    returned = "" if function.returns is None else ast.unparse(function.returns)
    return returned.strip("'\"") == "bool" or returned.startswith(("TypeGuard[", "TypeIs["))
