"""The path of a request from the user's call to the socket stays short: it is traced, and counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from call_trace import follow_all, follow_control, trace

ROOT = Path(__file__).resolve().parents[2]

#: (calls of functions of ours, moves to another file as a reader counts them, coroutines that wait above the socket).
#: A change that makes a path longer raises its row here, and says why in the commit.
LENGTHS = {"forward_backward": (133, 14, 7), "sample": (62, 11, 6)}
TOLERANCE = 1.05


@pytest.mark.parametrize("operation", LENGTHS)
def test_a_path_does_not_grow(operation: str) -> None:
    """Neither calls nor moves nor waits are more than twenty to one above what they were, on a warm client."""
    found = trace(ROOT)[operation]
    calls, moves, awaits = LENGTHS[operation]
    assert follow_all(found).calls <= calls * TOLERANCE
    assert follow_control(found, ROOT).moves <= moves * TOLERANCE
    assert found.awaits <= awaits
