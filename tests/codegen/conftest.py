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
def generated(document: Any, folder: Path, name: str, *modules: str) -> Iterator[ModuleType]:
    """Yield the package of a document, with these modules; it is forgotten after the block."""
    bindings = importlib.import_module("codegen.bindings")
    assert bindings.generate(copy.deepcopy(document), folder / name) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for module in modules:
            importlib.import_module(f"{name}.{module}")
        yield importlib.import_module(name)
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name]:
        del sys.modules[loaded]


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
    modules = ("models", "limits", "operations", "api.pets", "api.results")
    with generated(loaded_document, folder, "pet_wire", *modules) as package:
        yield package


@pytest.fixture(scope="session")
def contract() -> Any:
    """Return the small contract with a form, read once."""
    return importlib.import_module("codegen.files").load(FORMS)


@pytest.fixture(scope="session")
def uploads(tmp_path_factory: pytest.TempPathFactory, contract: Any) -> Iterator[ModuleType]:
    """Yield the package generated from the contract with a form."""
    folder = tmp_path_factory.mktemp("generated")
    modules = ("models", "operations", "api.photos")
    with generated(contract, folder, "upload_wire", *modules) as package:
        yield package
