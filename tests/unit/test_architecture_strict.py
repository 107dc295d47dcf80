"""Architecture rules that name no module: interfaces, type and function names, import paths."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from import_graph import Import, Module, parse
from naming import find_participles, python_files, repeated_types
from unit.test_architecture import MODULES, ROOT, complain, find_all_imports, shown

CHECKS = ROOT / "tinker" / "testing" / "conformance" / "checks"
OURS = python_files([ROOT / "tinker", ROOT / "codegen"])

#: Scripts that change sys.path, and the reason.
PATH_CHANGED = {
    "compat/surface/introspect.py": (
        "runs beside the official client as well, and takes its own folder off the path"
    ),
    "conftest.py": (
        "the generator is no part of the package, so it is found in the checkout, which "
        "is last on the path"
    ),
    "codegen/conftest.py": (
        "what the generator makes of the small contract lies in a temporary folder"
    ),
    "unit/test_lag.py": "imports a module that is written for the test",
}
PATH_CHANGES = ("sys.path.", "sys.path[")
#: A child that is forked by a test adds a hook here.
HOOKED_CHILD = "local/test_checkpoint_files.py"


#: Functions that keep their name.
PARTICIPLES_KEPT = {
    "regularized": "public, and reads as it should: a base loss, regularized by terms",
    "TrainingClient._guaranteed_model_id": "scripts for the official client call it",
}


def place(path: Path, line: int) -> str:
    """Return the place in the form that editors open."""
    return f"{path.relative_to(ROOT)}:{line}"


def test_no_import_of_any_kind_goes_up_to_a_client_or_an_official_path() -> None:
    """No private module names a client or an official path, not even for type checkers."""
    upwards = [
        found
        for found in find_all_imports()
        if found.arrow[0].startswith("_") and found.arrow[0] != "__init__"
        if found.arrow[1].endswith("_client") or found.arrow[1] in ("lib", "proto")
    ]
    complain(
        list(map(shown, upwards)),
        "A private module must not name a client. Take a protocol, or what is "
        "needed of the client:",
    )


def test_a_name_is_imported_from_where_it_is_defined() -> None:
    """The ``__init__`` of a private package hands no names on: importers name the module that defines what they use."""
    around = [found for found in find_all_imports() if is_handed_on(found)]
    complain(list(map(shown, around)), "Import this from the module that defines it:")


def is_handed_on(found: Import) -> bool:
    """Return whether a name comes from a private package's ``__init__``, which imports it itself."""
    package = MODULES.get(found.spelled)
    if (
        package is None
        or not package.is_package
        or not package.room.startswith("_")
        or package.room == "__init__"
    ):
        return False
    return found.target == found.spelled and found.name in set(imported(package))


def imported(package: Module) -> Iterator[str]:
    """Return the names that a module has from others."""
    for node in package.tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)


def test_a_type_name_is_defined_once() -> None:
    """No two types have the same name."""
    repeated = [
        f"{name}: " + ", ".join(place(found.path, found.line) for found in places)
        for name, places in repeated_types(OURS).items()
    ]
    complain(
        repeated,
        "Each of these type names is defined in several files. Name each after what only it is:",
    )


def test_no_function_is_named_by_a_participle() -> None:
    """Function names are verbs, such as open, send, poll; PARTICIPLES_KEPT has the exceptions."""
    found = [
        one
        for one in find_participles(OURS)
        # functions of checks are named after what must hold, as reports show the names
        if one.name not in PARTICIPLES_KEPT and one.path.parent != CHECKS
    ]
    complain(
        [f"{place(one.path, one.line)}: {one.name}" for one in found],
        "Name these functions by a verb in the imperative; values by a noun (as a property), "
        "questions by is_, has_ or can_ (-> bool):",
    )


def test_no_test_changes_the_import_path() -> None:
    """Shared test code is in tests/support, and tools/ is on pytest's path (pyproject.toml)."""
    changes = [
        place(path, line)
        for path in python_files([ROOT / "tests"])
        if path.relative_to(ROOT / "tests").as_posix() not in PATH_CHANGED
        for line in path_changes(path)
    ]
    complain(
        changes,
        "sys.path must not be changed. Put what is shared into tests/support and "
        "import it from there:",
    )


def path_changes(path: Path) -> Iterator[int]:
    """Return the lines that change ``sys.path``, or make pytest do it."""
    if not re.search(r"sys\s*\.\s*path|syspath_prepend", path.read_text(encoding="utf-8")):
        return
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute) and node.attr == "syspath_prepend":
            yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(PATH_CHANGES):
            yield node.lineno
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            if any(
                ast.unparse(target) == "sys.path" or ast.unparse(target).startswith(PATH_CHANGES)
                for target in targets
            ):
                yield node.lineno


def test_no_test_adds_an_audit_hook() -> None:
    """Only children of tests have audit hooks, which nothing removes: with one, a thread of a
    traced process may die as it starts, before Python 3.12.
    """
    found = [
        place(path, node.lineno)
        for path in python_files([ROOT / "tests"])
        if path.relative_to(ROOT / "tests").as_posix() != HOOKED_CHILD
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and node.attr == "addaudithook"
    ]
    complain(found, "Let monkeypatch replace what is to fail; an audit hook would stay:")


def test_the_checkout_is_not_on_the_path_of_tests() -> None:
    """Tests run against the installed package: no folder on their path has one of its name."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert [
        folder for folder in settings["pythonpath"] if (ROOT / folder / "tinker").exists()
    ] == []
