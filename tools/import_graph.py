"""What the modules of a checkout import, and the floors that follow. Modules are found, never
listed; nothing is run.

A *room* is a module directly in ``tinker/`` or a package there, whatever is inside it. An *arrow*
goes from a room to another that one of its files imports. There are four ways to import:

- ``runtime``: at the top level of a module or a class;
- ``face``: under ``TYPE_CHECKING`` in ``tinker/__init__.py``, whose lazy names they are; counts as
  runtime;
- ``lazy``: inside a function, or by ``import_module("tinker.…")`` with the name spelled out;
- ``types``: under ``TYPE_CHECKING`` anywhere else.

The *floor* of a room is one more than the highest floor among the rooms that it imports at run
time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

Way = Literal["runtime", "face", "lazy", "types"]
Arrow = tuple[str, str]
PACKAGE = "tinker"
FACE = "__init__"
TYPES_ONLY: frozenset[Way] = frozenset({"types"})


@dataclass(frozen=True)
class Module:
    """One Python file: ``tinker._wire.json`` in ``tinker/_wire/json.py``."""

    name: str
    path: Path

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def room(self) -> str:
        """The second word of its name; that of ``tinker`` itself is ``__init__``."""
        return room_of(self.name)

    @property
    def package(self) -> str:
        """What a relative import of one dot starts from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return parse(self.path)


@dataclass(frozen=True)
class Import:
    """One imported module, at one line: ``from spelled import name``, or ``import spelled``."""

    importer: Module
    line: int
    target: str
    way: Way
    spelled: str
    name: str | None = None

    @property
    def arrow(self) -> Arrow:
        return self.importer.room, room_of(self.target)


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file, read once."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def room_of(name: str) -> str:
    """Return the room of a module's name."""
    words = name.split(".")
    return words[1] if len(words) > 1 else FACE


def find_modules(root: Path, package: str = PACKAGE) -> dict[str, Module]:
    """Every module of the package below ``root``, by name, with those that are made for it."""
    homes = (root, root / "generated" / "older")
    found = (
        Module(_dotted(path.relative_to(home)), path)
        for home in homes
        for path in sorted((home / package).rglob("*.py"))
    )
    return {module.name: module for module in found}


def _dotted(path: Path) -> str:
    words = path.with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def find_imports(modules: dict[str, Module]) -> list[Import]:
    """Every import of one of the modules by another."""
    return [found for module in modules.values() for found in _imports(module, modules)]


def _imports(module: Module, modules: dict[str, Module]) -> Iterator[Import]:
    for node, way in _walk(module.tree, "runtime", module):
        for spelled, name in _spelled(node, module):
            whole = spelled if name is None else f"{spelled}.{name}"
            target = whole if whole in modules else spelled
            if target in modules:
                yield Import(module, getattr(node, "lineno", 0), target, way, spelled, name)


def _walk(node: ast.AST, way: Way, module: Module) -> Iterator[tuple[ast.AST, Way]]:
    """Every node below this one, and the way in which an import there would be made."""
    for child in ast.iter_child_nodes(node):
        inner = way
        if (
            isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            and way == "runtime"
        ):
            inner = "lazy"
        if isinstance(node, ast.If) and is_type_checking(node.test) and child in node.body:
            inner = "face" if module.name == PACKAGE else "types"
        yield child, inner
        yield from _walk(child, inner, module)


def is_type_checking(test: ast.expr) -> bool:
    """Whether this is the condition that only type checkers meet."""
    return ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING"


def _spelled(node: ast.AST, module: Module) -> Iterator[tuple[str, str | None]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, None) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((_absolute(node, module), alias.name) for alias in node.names)
    elif (
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module"
    ):
        yield from (
            (arg.value, None)
            for arg in node.args
            if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        )


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    words = module.package.split(".")
    words = words[: len(words) - node.level + 1]
    return ".".join([*words, node.module] if node.module else words)


@dataclass(frozen=True)
class Graph:
    """The rooms, the arrows between them with the ways of each, and the floors."""

    rooms: tuple[str, ...]
    arrows: dict[Arrow, frozenset[Way]]

    @cached_property
    def floors(self) -> dict[str, int]:
        """By imports at run time, those inside functions left out: when they are made, the rooms
        are there already.
        """
        return floors(
            self.rooms, [arrow for arrow, ways in self.arrows.items() if ways & {"runtime", "face"}]
        )

    @property
    def circles(self) -> list[tuple[str, ...]]:
        """Rooms that import each other in a ring, in whatever way but for type checkers only."""
        return rings(
            self.rooms, [arrow for arrow, ways in self.arrows.items() if ways != TYPES_ONLY]
        )

    @property
    def upward(self) -> list[Arrow]:
        """The arrows that do not go down: they can only be lazy, for type checkers, or part of a
        ring.
        """
        return sorted(
            arrow for arrow in self.arrows if self.floors[arrow[1]] >= self.floors[arrow[0]]
        )

    def reduce(self) -> Graph:
        """Return the graph without the arrows down that follow from others, so that a reader can
        follow the rest.
        """
        upward = set(self.upward)
        below = {
            room: {
                end for start, end in self.arrows if start == room and (start, end) not in upward
            }
            for room in self.rooms
        }

        @cache
        def reached(room: str) -> frozenset[str]:
            return frozenset(below[room]).union(*map(reached, below[room]))

        said = {
            (start, end)
            for start in self.rooms
            for middle in below[start]
            for end in reached(middle)
        } - upward
        return Graph(
            self.rooms, {arrow: ways for arrow, ways in self.arrows.items() if arrow not in said}
        )


def draw_graph(imports: Iterable[Import], rooms: Iterable[str]) -> Graph:
    """Return the graph of these imports among these rooms."""
    kept = tuple(sorted(set(rooms)))
    arrows: dict[Arrow, set[Way]] = {}
    for found in imports:
        start, end = found.arrow
        if start != end and start in kept and end in kept:
            arrows.setdefault((start, end), set()).add(found.way)
    return Graph(kept, {arrow: frozenset(ways) for arrow, ways in sorted(arrows.items())})


def floors(rooms: Iterable[str], arrows: Iterable[Arrow]) -> dict[str, int]:
    """Return the floor of each room; the rooms of a ring share one."""
    ordered = list(arrows)
    ring_of = {room: ring for ring in rings(rooms, ordered, 1) for room in ring}
    below: dict[tuple[str, ...], set[tuple[str, ...]]] = {ring: set() for ring in ring_of.values()}
    for start, end in ordered:
        if ring_of[start] != ring_of[end]:
            below[ring_of[start]].add(ring_of[end])

    @cache
    def floor(ring: tuple[str, ...]) -> int:
        return 1 + max(map(floor, below[ring]), default=0)

    return {room: floor(ring) for room, ring in ring_of.items()}


def rings(
    rooms: Iterable[str], arrows: Iterable[Arrow], smallest: int = 2
) -> list[tuple[str, ...]]:
    """Rooms that reach one another, in groups of at least ``smallest``."""
    names = sorted(rooms)
    reached = {room: {room} for room in names}
    ordered = list(arrows)
    size = 0
    while size != (size := sum(map(len, reached.values()))):
        for start, end in ordered:
            reached[start] |= reached[end]
    groups = {
        tuple(other for other in names if other in reached[room] and room in reached[other])
        for room in names
    }
    return sorted(group for group in groups if len(group) >= smallest)
