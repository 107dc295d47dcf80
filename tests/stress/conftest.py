"""What the tests of stress share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Disable garbage collection where deep JSON is read: a finalizer run at the recursion limit
    would fail the test.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()
