"""The judge and the recordings are modules beside the tests; other tests of this repository may use the judge too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema_rs", reason="the test dependencies are not installed")
sys.path.insert(0, str(Path(__file__).parent))

from contract import Contract, load

from tinker._wire import proto

PARSERS = {
    "tinker_public.ForwardBackwardRequest": proto.decode_forward_backward,
    "tinker_public.ForwardBackwardOutput": proto.decode_loss_output,
    "tinker_public.SampleResponse": proto.decode_sample,
}


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    """openapi.yaml, read once; nobody changes it."""
    return load()


@pytest.fixture(scope="session")
def contract(document: dict[str, Any]) -> Contract:
    """The contract, which also parses protobuf bodies."""
    return Contract(document, PARSERS)
