"""The generator and what it writes are loaded from where they lie: neither is part of the installed package."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .pet_contract import FIXTURE, ROOT


def load_package(name: str, folder: Path) -> ModuleType:
    """Import the package in a folder under a name; its modules are then importable below that name."""
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return package


def unload_package(name: str) -> None:
    """Forget a package and its modules."""
    for loaded in [loaded for loaded in sys.modules if loaded == name or loaded.startswith(f"{name}.")]:
        del sys.modules[loaded]


load_package("codegen", ROOT / "codegen")


@pytest.fixture(scope="session")
def loaded_document() -> Any:
    """The small contract, read once."""
    return importlib.import_module("codegen.files").load(FIXTURE)


@pytest.fixture
def document(loaded_document: Any) -> Any:
    """The small contract that has every construct, fresh for each test."""
    return copy.deepcopy(loaded_document)


@pytest.fixture(scope="session")
def pets(tmp_path_factory: pytest.TempPathFactory, loaded_document: Any) -> Iterator[ModuleType]:
    """The package generated from the small contract."""
    folder = tmp_path_factory.mktemp("generated") / "pet_wire"
    assert importlib.import_module("codegen.bindings").generate(copy.deepcopy(loaded_document), folder) == []
    package = load_package("pet_wire", folder)
    for name in ("models", "limits", "operations", "api.pets", "api.results"):
        importlib.import_module(f"pet_wire.{name}")
    yield package
    unload_package("pet_wire")
