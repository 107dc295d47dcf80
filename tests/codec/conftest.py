"""Messages of Google's protobuf runtime."""

from __future__ import annotations

from typing import Any

import pytest
from support.google_messages import google_messages


@pytest.fixture(scope="session")
def messages() -> dict[str, Any]:
    """Message classes by their name without the package."""
    return google_messages()
