"""Modules beside the tests, and the messages of Google's runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from google_messages import google_messages


@pytest.fixture(scope="session")
def messages() -> dict[str, Any]:
    """Message classes by their name without the package."""
    return google_messages()
