"""Print the figures of the project's structure: how far a request travels, how the modules hang together, how things are named.

    python tools/structure.py                         the table
    python tools/structure.py -v                      and what stands behind each figure: chains, arrows, places of names
    python tools/structure.py --root ../before        of another checkout (`git worktree add ../before COMMIT`)
    python tools/structure.py --json                  as JSON
    python tools/structure.py --drawing graph.svg     draw the import graph of the client

What is counted and how: `call_trace.py` (the way of a request), `import_graph.py` (rooms, floors), `naming.py` (types,
participles). In addition:

- *rooms* are the modules directly in `tinker/` and the packages there. The graph has all of them. The drawing leaves out `cli`,
  `local`, `testing`, and what only hands names on (`lib`, `proto`, and `tinker/__init__.py`);
- an import *runs upwards* when the room that it names is not on a lower floor; each pair of rooms counts once. The second
  figure takes lazy imports as part of the order, so that only those for type checkers can be against it;
- *private modules* are the files `_*.py` directly in `tinker/`, `__init__.py` and `__main__.py` left out;
- *client lines* are all lines of the `.py` files of `tinker/` without `local/`, `testing/` and `cli/`;
- the length of a function of these files is its lines without decorators and docstring.

The trace needs what `tinker[server]` installs; `--no-trace` leaves it out.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from call_trace import Route, follow_all, follow_control, trace
from drawing import draw
from import_graph import TYPES_ONLY, Graph, Import, draw_graph, find_imports, find_modules, floors
from naming import Definition, Function, find_functions, find_participles, python_files, repeated_types

ROOT = Path(__file__).resolve().parents[1]
APART = frozenset({"local", "testing", "cli", "__main__"})
HANDING_ON = frozenset({"lib", "proto", "__init__"})
DRAWING_TITLE = "What imports what in tinker: a room stands above all that it imports"


@dataclass(frozen=True)
class Figure:
    """A line of the table, and what stands behind it."""

    name: str
    value: int | float
    details: list[str] = field(default_factory=list[str])


def measure(root: Path, *, traced: bool = True) -> list[Figure]:
    """All figures of a checkout."""
    return [*(measure_requests(root) if traced else []), *measure_imports(root), *measure_names(root), *measure_size(root)]


def measure_requests(root: Path) -> list[Figure]:
    """From the user's call to the connection."""
    figures: list[Figure] = []
    for operation, found in trace(root).items():
        figures += _route_figures(f"{operation}, control only", follow_control(found, root))
        figures += _route_figures(f"{operation}, everything", follow_all(found))
        figures.append(Figure(f"{operation}, awaits above the socket", found.awaits))
    return figures


def _route_figures(name: str, route: Route) -> list[Figure]:
    return [
        Figure(f"{name}: calls", route.calls),
        Figure(f"{name}: files", route.files),
        Figure(f"{name}: moves to another file", route.moves, [" > ".join(map(_short, route.chain))]),
        Figure(f"{name}: returns to a file already left", route.returns),
    ]


def _short(path: str) -> str:
    return path.removeprefix("tinker/").removesuffix(".py")


def client_graph(root: Path) -> Graph:
    """What the drawing shows."""
    modules = find_modules(root)
    return draw_graph(find_imports(modules), {module.room for module in modules.values()} - APART - HANDING_ON)


def measure_imports(root: Path) -> list[Figure]:
    """Rooms, floors, and what runs against them."""
    modules = find_modules(root)
    imports = find_imports(modules)
    graph = draw_graph(imports, {module.room for module in modules.values()})
    lazily = floors(graph.rooms, [arrow for arrow, ways in graph.arrows.items() if ways != TYPES_ONLY])
    against = [arrow for arrow in graph.arrows if lazily[arrow[1]] >= lazily[arrow[0]]]
    private = sorted(path.name for path in (root / "tinker").glob("_*.py") if not path.name.startswith("__"))
    return [
        Figure("rooms", len(graph.rooms)),
        Figure("arrows between rooms", len(graph.arrows)),
        Figure("import floors", max(graph.floors.values()), _floor_lines(graph)),
        Figure("imports running upwards", len(graph.upward), _arrow_lines(graph.upward, imports, root)),
        Figure("imports running upwards, lazy ones in order", len(against), _arrow_lines(against, imports, root)),
        Figure("circles", len(graph.circles), [" <-> ".join(circle) for circle in graph.circles]),
        Figure("private modules directly in tinker/", len(private), [" ".join(private)]),
    ]


def _floor_lines(graph: Graph) -> list[str]:
    levels = sorted(set(graph.floors.values()), reverse=True)
    return [f"{level:2}  " + " ".join(room for room in graph.rooms if graph.floors[room] == level) for level in levels]


def _arrow_lines(arrows: Iterable[tuple[str, str]], imports: list[Import], root: Path) -> list[str]:
    lines: list[str] = []
    for start, end in arrows:
        there = [found for found in imports if found.arrow == (start, end)]
        places = ", ".join(f"{found.importer.path.relative_to(root)}:{found.line} ({found.way})" for found in there)
        lines.append(f"{start} -> {end}: {places}")
    return lines


def measure_names(root: Path) -> list[Figure]:
    """Types with one name, and functions named by participles, in `tinker/` and `codegen/`."""
    files = python_files([root / "tinker", root / "codegen"])
    repeated = repeated_types(files)
    participles = find_participles(files)
    types = [f"{name}: " + ", ".join(place(found, root) for found in places) for name, places in repeated.items()]
    return [
        Figure("type names defined more than once", len(repeated), types),
        Figure(
            "functions named by a participle",
            len(participles),
            [f"{found.name}: {place(found, root)}" for found in participles],
        ),
    ]


def place(found: Definition, root: Path) -> str:
    """The file and line of a definition."""
    return f"{found.path.relative_to(root)}:{found.line}"


def measure_size(root: Path) -> list[Figure]:
    """Lines of the client and of its functions."""
    files = [path for path in python_files([root / "tinker"]) if path.relative_to(root).parts[1] not in APART]
    functions = [(body_lines(function), name, path) for path in files for name, function in find_functions(path)]
    longest, name, path = max(functions)
    return [
        Figure("client lines", sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)),
        Figure("client files", len(files)),
        Figure("longest function", longest, [f"{name} in {path.relative_to(root)}"]),
        Figure("median function", statistics.median(lines for lines, _, _ in functions)),
    ]


def body_lines(function: Function) -> int:
    """The lines of a function without decorators and docstring."""
    first = function.body[0]
    docstring = _lines(first) if ast.get_docstring(function) is not None else 0
    return _lines(function) - docstring


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def print_table(figures: list[Figure], *, verbose: bool) -> None:
    """The figures as a Markdown table; then, when asked, the details of each."""
    print("| figure | |\n|---|--:|")
    for figure in figures:
        print(f"| {figure.name} | {figure.value:,} |")
    for figure in figures if verbose else []:
        if figure.details:
            print(f"\n{figure.name}: {figure.value:,}", *figure.details, sep="\n  ")


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure; this one when left out")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--drawing", type=Path, metavar="FILE.svg", help="draw the import graph of the client, and measure nothing"
    )
    parser.add_argument("--no-trace", action="store_true", help="leave out the figures that need a running client")
    parser.add_argument("-v", "--verbose", action="store_true", help="what stands behind each figure")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    if options.drawing is not None:
        options.drawing.write_text(draw(client_graph(root), DRAWING_TITLE), encoding="utf-8")
        return
    figures = measure(root, traced=not options.no_trace)
    if options.json:
        print(json.dumps({figure.name: {"value": figure.value, "details": figure.details} for figure in figures}, indent=2))
    else:
        print_table(figures, verbose=options.verbose)


if __name__ == "__main__":
    main(sys.argv[1:])
