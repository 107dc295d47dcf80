"""The judge and the recordings are modules beside the tests; other tests of this repository may use the judge too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema_rs", reason="the test dependencies are not installed")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "codec"))

from contract import Contract
from validating import strict_contract


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    """openapi.yaml, read once; nobody changes it."""
    return strict_contract().document


@pytest.fixture(scope="session")
def contract() -> Contract:
    """The contract, which also parses protobuf bodies."""
    return strict_contract()
