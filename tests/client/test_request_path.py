"""The path of a request from the user's call to the socket, traced and counted, does not grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from call_trace import Trace, follow_all, follow_control, follow_out, trace
from structure import FIGURES, PAGE, measure_routes, write_figures

ROOT = Path(__file__).resolve().parents[2]

#: Calls of our functions until the request is sent, and until the value is there; moves to another
#: file, as a reader counts them, until it is sent; coroutines that wait above the socket. A change
#: that makes a path longer raises its row here, with the reason in the commit.
LENGTHS = {"forward_backward": (132, 343, 13, 7), "sample": (71, 208, 10, 6)}
TOLERANCE = 1.05


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    """Return the trace of each operation on a warm client."""
    return trace(ROOT)


@pytest.mark.parametrize("operation", LENGTHS)
def test_a_path_does_not_grow(operation: str, traces: dict[str, Trace]) -> None:
    """On a warm client calls, moves and waits exceed their counts by a twentieth at most."""
    found = traces[operation]
    sent, calls, moves, awaits = LENGTHS[operation]
    assert follow_out(found).calls <= sent * TOLERANCE
    assert follow_all(found).calls <= calls * TOLERANCE
    assert follow_control(found, ROOT).moves <= moves * TOLERANCE
    assert found.awaits <= awaits


@pytest.mark.httpunk("the figures are those of its connections")
def test_the_page_has_the_figures_of_today(traces: dict[str, Trace]) -> None:
    """docs/architecture.md says how long the way of both calls is, to one twentieth, since a result
    may be there sooner; `python tools/structure.py --docs` writes it.
    """
    page = (ROOT / PAGE).read_text()
    written, measured = (
        [int(word) for word in FIGURES.findall(text)[0].split() if word.isdigit()]
        for text in (page, write_figures(page, measure_routes(traces, ROOT)))
    )
    assert all(
        abs(now - then) <= (TOLERANCE - 1) * then
        for then, now in zip(written, measured, strict=True)
    )
