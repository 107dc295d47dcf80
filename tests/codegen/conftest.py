"""The generator is a script beside the package: its folder is put on the path for these tests only."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

sys.path[:0] = [str(ROOT / "codegen"), str(Path(__file__).parent)]

from pet_contract import FIXTURE  # noqa: E402


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
    sys.path.insert(0, str(folder))
    importlib.import_module("pet_wire.models")
    importlib.import_module("pet_wire.operations")
    importlib.import_module("pet_wire.api.pets")
    importlib.import_module("pet_wire.api.results")
    yield importlib.import_module("pet_wire")
    sys.path.remove(str(folder))
