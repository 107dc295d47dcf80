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
    return importlib.import_module("generate").load(FIXTURE)


@pytest.fixture
def document(loaded_document: Any) -> Any:
    """The small contract that has every construct, fresh for each test."""
    return copy.deepcopy(loaded_document)


@pytest.fixture(scope="session")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The package generated from the small contract."""
    generate = importlib.import_module("generate")
    folder = tmp_path_factory.mktemp("generated")
    assert generate.generate(generate.load(FIXTURE), folder / "pet_wire") == []
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for name in ("models", "operations", "api.pets", "api.results"):
            importlib.import_module(f"pet_wire.{name}")
        yield importlib.import_module("pet_wire")
