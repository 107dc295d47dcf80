"""The small contract, and the package that the generator makes of it."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.pet_contract import FIXTURE, ROOT

FORMS = FIXTURE.with_name("upload_contract.yaml")


def load_generator() -> None:
    """Import codegen from where it lies, as the checkout is not on the path."""
    folder = ROOT / "codegen"
    spec = spec_from_file_location(
        "codegen", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["codegen"] = package = module_from_spec(spec)
    spec.loader.exec_module(package)


load_generator()


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the packages of a folder be imported; they are forgotten after the block."""
    names = {package.name for package in folder.iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    for name in [loaded for loaded in sys.modules if loaded.partition(".")[0] in names]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def loaded_document() -> Any:
    """Return the small contract, read once."""
    return importlib.import_module("codegen.files").load(FIXTURE)


@pytest.fixture
def document(loaded_document: Any) -> Any:
    """Return the small contract that has every construct, fresh for each test."""
    return copy.deepcopy(loaded_document)


@pytest.fixture(scope="session")
def pets(tmp_path_factory: pytest.TempPathFactory, loaded_document: Any) -> Iterator[ModuleType]:
    """Yield the package generated from the small contract."""
    folder = tmp_path_factory.mktemp("generated")
    assert (
        importlib.import_module("codegen.bindings").generate(
            copy.deepcopy(loaded_document), folder / "pet_wire"
        )
        == []
    )
    with importable(folder):
        for name in ("models", "limits", "operations", "api.pets", "api.results"):
            importlib.import_module(f"pet_wire.{name}")
        yield importlib.import_module("pet_wire")


@pytest.fixture(scope="session")
def contract() -> Any:
    """Return the small contract with a form, read once."""
    return importlib.import_module("codegen.files").load(FORMS)


@pytest.fixture(scope="session")
def uploads(tmp_path_factory: pytest.TempPathFactory, contract: Any) -> Iterator[ModuleType]:
    """Yield the package generated from the contract with a form."""
    folder = tmp_path_factory.mktemp("generated")
    assert (
        importlib.import_module("codegen.bindings").generate(
            copy.deepcopy(contract), folder / "upload_wire"
        )
        == []
    )
    with importable(folder):
        for name in ("models", "operations", "api.photos"):
            importlib.import_module(f"upload_wire.{name}")
        yield importlib.import_module("upload_wire")
