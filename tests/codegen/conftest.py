"""The small contract, and the package that the generator makes of it."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from support.pet_contract import FIXTURE


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
    folder = tmp_path_factory.mktemp("generated")
    assert importlib.import_module("codegen.bindings").generate(copy.deepcopy(loaded_document), folder / "pet_wire") == []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for name in ("models", "limits", "operations", "api.pets", "api.results"):
            importlib.import_module(f"pet_wire.{name}")
        yield importlib.import_module("pet_wire")
