"""The path of a request from the user's call to the socket, traced and counted, does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from call_trace import follow_all, follow_control, trace

ROOT = Path(__file__).resolve().parents[2]

#: (calls of our functions, moves to another file as a reader counts them, coroutines that wait
#: above the socket). A change that makes a path longer raises its row here, with the reason in the
#: commit.
LENGTHS = {"forward_backward": (133, 14, 7), "sample": (67, 13, 6)}
TOLERANCE = 1.05


@pytest.mark.parametrize("operation", LENGTHS)
def test_a_path_does_not_grow(operation: str) -> None:
    """On a warm client, calls, moves and waits exceed their recorded counts by at most one
    twentieth.
    """
    found = trace(ROOT)[operation]
    calls, moves, awaits = LENGTHS[operation]
    assert follow_all(found).calls <= calls * TOLERANCE
    assert follow_control(found, ROOT).moves <= moves * TOLERANCE
    assert found.awaits <= awaits
