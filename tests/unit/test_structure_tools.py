"""The scripts that measure the structure: imports, levels, repeated names, participles."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from call_trace import Entry, follow, is_control
from drawing import draw
from import_graph import Graph, draw_graph, find_imports, find_modules
from naming import is_named_by_participle, repeated_types
from structure import (
    BUDGET,
    ROOT,
    body_lines,
    count_statements,
    find_raises,
    measure_guests,
    measure_size,
    read_budget,
    read_guests,
)


def write(root: Path, files: dict[str, str]) -> Path:
    """Write a checkout with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


FILES = {
    "tinker/__init__.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tinker.top import Top\n"
    ),
    "tinker/top.py": "from tinker import middle\nfrom tinker._pack.inner import thing\n",
    "tinker/middle.py": (
        "import typing\nif typing.TYPE_CHECKING:\n    import "
        "tinker.top\nelse:\n    from ._pack import thing\n"
    ),
    "tinker/_pack/__init__.py": "from .inner import thing\n",
    "tinker/_pack/inner.py": (
        "def thing():\n    from ..middle import x\n    import_module('tinker.top')\n"
    ),
}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Return the graph of FILES."""
    modules = find_modules(write(tmp_path, FILES))
    return draw_graph(find_imports(modules), {module.room for module in modules.values()})


def test_an_import_is_seen_wherever_it_stands(graph: Graph) -> None:
    """Every kind of import is found; those inside a package do not count."""
    assert graph.arrows == {
        ("__init__", "top"): {"face"},
        ("_pack", "middle"): {"lazy"},
        ("_pack", "top"): {"lazy"},
        ("middle", "_pack"): {"runtime"},
        ("middle", "top"): {"types"},
        ("top", "_pack"): {"runtime"},
        ("top", "middle"): {"runtime"},
    }


def test_floors_follow_imports_at_run_time(graph: Graph) -> None:
    """An import against the levels is upward, and a lazy one closes a cycle too."""
    assert graph.floors == {"_pack": 1, "middle": 2, "top": 3, "__init__": 4}
    assert graph.upward == [("_pack", "middle"), ("_pack", "top"), ("middle", "top")]
    assert graph.circles == [("_pack", "middle", "top")]


def test_the_drawing_is_an_svg_document_that_does_not_change(graph: Graph) -> None:
    """The same graph gives the same bytes, with all its boxes and curves."""
    drawing = draw(graph, "a & b")
    assert drawing == draw(graph, "a & b")
    tags = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(drawing).iter()]
    assert (tags.count("rect"), tags.count("path")) == (4, 7)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("def opened(): ...", True),
        ("async def _handed_over(): ...", True),
        ("def source_taken() -> str: ...", True),
        ("def open(): ...", False),
        ("def read_seed(): ...", False),
        ("def check_accepted(): ...", False),
        ("def cancelled() -> bool: ...", False),
        ("@property\ndef created(self) -> str: ...", False),
        ("@functools.cached_property\ndef shown(self): ...", False),
        ("def __init_subclassed__(self): ...", False),
    ],
)
def test_participles_are_distinguished_from_verbs(source: str, named: bool) -> None:
    """Properties and predicates may be participles; functions with an effect are verbs."""
    (function,) = ast.parse(source).body
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    assert is_named_by_participle(function) is named


def test_a_type_name_counts_once_for_each_file(tmp_path: Path) -> None:
    """Classes and aliases count; constants, and names inside a function, do not."""
    write(
        tmp_path,
        {
            "a.py": "class Answer: ...\nclass Row: ...\nLIMITS = A | B\nSource = dict[str, int]\n",
            "b.py": (
                "try:\n    class _Answer: ...\nexcept ImportError:\n    "
                "class _Answer: ...\nLIMITS = A | B\n"
            ),
            "c.py": "Source: TypeAlias = int\ndef f():\n    class Row: ...\n",
        },
    )
    repeated = repeated_types(sorted(tmp_path.glob("*.py")))
    assert {name: [place.path.name for place in places] for name, places in repeated.items()} == {
        "Answer": ["a.py", "b.py"],
        "Source": ["a.py", "c.py"],
    }


def test_a_route_counts_moves_and_returns(tmp_path: Path) -> None:
    """A route counts files, moves and returns; types, accessors and properties do not count."""
    route = follow([Entry(name, "f", 1, False) for name in ("a", "b", "b", "a", "c", "a")])
    assert (route.calls, route.files, route.moves, route.returns) == (6, 3, 4, 2)
    source = (
        "class A:\n    @property\n    def p(self):\n        return g()\n\ndef accessor():\n    "
        "return g\n\ndef f():\n    return g()\n"
    )
    root = write(tmp_path, {"tinker/a.py": source, "tinker/types/a.py": source})
    assert is_control(Entry("tinker/a.py", "f", 9, False), root)
    assert not is_control(Entry("tinker/a.py", "p", 2, False), root)
    assert not is_control(Entry("tinker/a.py", "accessor", 6, False), root)
    assert not is_control(Entry("tinker/types/a.py", "f", 9, False), root)
    assert not is_control(Entry("<attrs generated>", "__init__", 1, False), root)


def test_docstring_and_decorators_do_not_count() -> None:
    """Docstring and decorators do not count as lines of a function."""
    (function,) = ast.parse(
        '@cache\ndef f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n'
    ).body
    assert isinstance(function, ast.FunctionDef)
    assert body_lines(function) == 3


def test_a_statement_counts_once_however_it_is_written(tmp_path: Path) -> None:
    """A statement over several lines counts as one on a wide line; comments do not count."""
    path = tmp_path / "one.py"
    path.write_text(
        '"""Doc\nstring."""\n\n# comment\nx = """a\nb"""  # code\n\ndef f():\n    "Doc."\n    '
        "return (\n        1\n    )\n"
    )
    assert count_statements(path) == 3


def test_nothing_is_larger_than_its_budget() -> None:
    """No part has more statements or files than budget.toml, which is lowered when they fall."""
    there = {
        figure.name: figure.value
        for figure in measure_size(ROOT)
        if figure.name.startswith(("statements: ", "files: "))
    }
    budget = {
        f"{kind}: {name}": most
        for kind, figures in read_budget((ROOT / BUDGET).read_text()).items()
        for name, most in figures.items()
    }
    assert there.keys() == budget.keys(), "tools/budget.toml has a figure for each part"
    over = {name: there[name] for name, most in budget.items() if there[name] > most}
    assert over == {}, "more than tools/budget.toml allows"
    loose = {name: there[name] for name, most in budget.items() if there[name] < 0.98 * most}
    assert loose == {}, "lower the figures in tools/budget.toml to these"


def test_a_guest_is_where_the_budget_says() -> None:
    """Every path of a guest exists, so that its statements do not count as those of the core."""
    assert [
        path for paths in read_guests(ROOT).values() for path in paths if not (ROOT / path).exists()
    ] == []


def test_the_core_imports_guests_when_they_are_used() -> None:
    """When it is loaded, the core imports only the hints, and no more than twenty names."""
    at_once, _ = measure_guests(ROOT)
    assert [line for line in at_once.details if not line.startswith("hints: ")] == []
    assert at_once.value <= 20


def test_no_commit_raises_the_budget() -> None:
    """No change of this checkout's history, or not committed yet, allows more in all."""
    assert list(find_raises(ROOT)) == []


def test_a_raise_without_an_equal_cut_is_found(tmp_path: Path) -> None:
    """A figure may rise while another falls by as much; any other raise is reported."""

    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    def allow(first: int, second: int) -> None:
        write(tmp_path, {str(BUDGET): f"[statements]\nfirst = {first}\nsecond = {second}\n"})

    git("init", "-q")
    for first, second in ((10, 10), (12, 8), (11, 8)):
        allow(first, second)
        git("add", ".")
        git("commit", "-q", "-m", "a change")
    assert list(find_raises(tmp_path)) == []
    allow(11, 10)
    assert list(find_raises(tmp_path)) == ["the checkout allows 2 more statements"]
    git("commit", "-q", "-a", "-m", "a raise")
    allow(11, 9)
    assert [found.partition(" ")[2] for found in find_raises(tmp_path)] == [
        "allows 2 more statements"
    ]
