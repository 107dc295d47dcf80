"""Architecture: the direction of imports, and packages that the client does not import."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from import_graph import Import, find_imports, find_modules

ROOT = Path(__file__).resolve().parents[2]
MODULES = find_modules(ROOT)

#: Packages from the bottom up; others are not checked. A package imports none from a later line.
LAYERS = (
    ("types",),
    ("_wire",),
    ("_http",),
    ("_session",),
    ("_training", "_sampling", "_checkpoints"),
    tuple(sorted({module.room for module in MODULES.values() if module.room.endswith("_client")})),
    ("_older",),
    ("lib", "proto"),
)
LEVELS = {room: level for level, layer in enumerate(LAYERS) for room in layer}

#: Packages outside the client, and what the client imports from them nevertheless.
APART = ("local", "testing", "cli", "__main__")
ASKED_BY_CLIENT = {
    "tinker.local": (
        "the server of base_url='local://' is imported by name when it is first used, "
        "and in one place"
    )
}


@cache
def find_all_imports() -> list[Import]:
    """Return every import of one module of the package by another, read once."""
    return find_imports(MODULES)


def complain(problems: Iterable[str], advice: str) -> None:
    """Fail with one line for each problem."""
    listed = list(dict.fromkeys(problems))  # an import of two names is one line
    if listed:
        pytest.fail("\n".join([advice, *listed]), pytrace=False)


def shown(found: Import) -> str:
    """Return the place of an import, and what it imports."""
    return (
        f"{found.importer.path.relative_to(ROOT)}:{found.line}: imports {found.target} "
        f"({found.way})"
    )


def test_modules_are_found() -> None:
    """Modules are found, as without any the tests of the structure would pass."""
    assert len(MODULES) > 100
    assert len(find_all_imports()) > 300
    assert {"types", "_wire"} <= {module.room for module in MODULES.values()}


def test_packages_import_downwards_only() -> None:
    """No import points upwards, from types and HTTP to the clients at the top."""
    wrong = [found for found in find_all_imports() if all(room in LEVELS for room in found.arrow)]
    complain(
        (
            shown(found)
            for found in wrong
            if LEVELS[found.arrow[0]] < LEVELS[found.arrow[1]] and found.way != "types"
        ),
        "These imports run upwards. Move what is needed to the lower package, or hand it "
        "in as an argument:",
    )


def test_the_client_imports_neither_server_nor_test_kit_nor_commands() -> None:
    """The client needs only ``pip install`` without extras, and its import stays cheap."""
    imports = (
        found for found in find_all_imports() if found.way != "face"
    )  # `tinker.testing` is a name of the package, loaded on use
    across = [found for found in imports if found.arrow[1] in APART and found.arrow[0] not in APART]
    complain(
        map(shown, (found for found in across if found.target not in ASKED_BY_CLIENT)),
        "The client must not import these. Move what both need into the client; if there is no "
        "other way, say why in ASKED_BY_CLIENT:",
    )
    for target in ASKED_BY_CLIENT:
        places = [shown(found) for found in across if found.target == target]
        assert len(places) == 1, "\n".join(
            [f"{target} must be imported in one place, and inside a function:", *places]
        )
        assert "(lazy)" in places[0], f"{places[0]}: must be imported inside a function"


def test_generated_code_imports_nothing_of_the_client() -> None:
    """The bindings work without the client; only type checkers may know its types."""
    bindings = find_modules(ROOT / "generated", "tinker_wire")
    both = {**MODULES, **bindings}
    complain(
        (
            shown(found)
            for found in find_imports(both)
            if found.importer.name in bindings
            and found.target not in bindings
            and found.way != "types"
        ),
        "tinker_wire must not import tinker. Change the templates in codegen/:",
    )
