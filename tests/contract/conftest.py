"""The contract, read once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("jsonschema_rs", reason="the test dependencies are not installed")
from support.contract import Contract
from support.judge import strict_contract


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    """Return the parsed openapi.yaml, read once; tests must not change it."""
    return strict_contract().document


@pytest.fixture(scope="session")
def contract() -> Contract:
    """Return the contract, which also parses protobuf bodies."""
    return strict_contract()
