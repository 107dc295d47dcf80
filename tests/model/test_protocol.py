"""The model of the order of requests: its invariants hold in every state, and a mistake in a rule
breaks one.
"""

from __future__ import annotations

import pytest

from model.explore import explore, programs
from model.protocol import Rules

#: A mistake in a rule, and the invariant that it breaks in a program of a gradient, a step, and the
#: same again.
MISTAKES = {
    "writes_before_answer": "step_has_its_gradient",
    "keeps_unknown_numbers": "number_names_one_request",
    "checks_receipt_at_call": "step_has_its_gradient",
    "stops_at_server": "step_has_its_gradient",
    "tells_settled_failures": "failure_is_known_first",
    "repeats_under_its_number": "request_is_accepted_once",
}


@pytest.mark.parametrize("program", programs(3))
def test_three_requests(program: str) -> None:
    """Whatever the order of calls, arrivals and results, with one fault and one restart, every
    invariant holds.
    """
    assert explore(program, faults=1, restarts=1).broken is None


@pytest.mark.parametrize("program", ["GS", "GV", "SG"])
def test_two_faults(program: str) -> None:
    """Every invariant holds with two faults and a restart; `nox -s model` tries programs of four
    requests.
    """
    assert explore(program, faults=2, restarts=1).broken is None


def test_a_server_without_a_journal() -> None:
    """A server that forgets its sessions leaves no future without an end, and nothing takes effect
    twice.
    """
    assert explore("GSG", faults=1, restarts=1, rules=Rules(is_journaled=False)).broken is None


@pytest.mark.parametrize("rule", MISTAKES)
def test_a_mistake_breaks_an_invariant(rule: str) -> None:
    """Where a party breaks this rule, two faults and a restart suffice for a state that breaks an
    invariant.
    """
    # it takes most states, and needs one step only
    program = "GSG" if rule == "tells_settled_failures" else "GSGS"
    found = explore(program, faults=2, restarts=1, rules=Rules(**{rule: False}))
    assert (found.broken, MISTAKES[rule]) == (MISTAKES[rule], found.broken), found.trace


def test_the_mistakes_are_all() -> None:
    """Each rule has a mistake above, but for the journal, which a server may do without."""
    assert {*MISTAKES, "is_journaled"} == set(Rules._fields)
