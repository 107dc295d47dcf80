"""The order of requests: its invariants hold in every state that the client and the server can
reach, and a mistake in either breaks one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from model.explore import explore, programs
from tinker._http.submission import Submission
from tinker._training.order import Block, Numbers, Sequencer, Turn
from tinker.local.scheduling import ModelQueue


@pytest.mark.parametrize("program", programs(3))
def test_three_requests(program: str) -> None:
    """Whatever the order of calls, arrivals and results, with one fault and one restart, every
    invariant holds.
    """
    assert explore(program, faults=1, restarts=1).broken is None


@pytest.mark.parametrize(("program", "restarts"), [("GS", 1), ("GV", 1), ("SG", 1), ("GGS", 0)])
def test_two_faults(program: str, restarts: int) -> None:
    """Every invariant holds with two faults; `nox -s model` tries programs of four requests."""
    assert explore(program, faults=2, restarts=restarts).broken is None


def test_a_server_without_a_journal() -> None:
    """A server that forgets its sessions leaves no future without an end, and nothing takes effect
    twice.
    """
    assert explore("GSG", faults=1, restarts=1, is_journaled=False).broken is None


#: A step is given up while it is on its way, and so is its number, but not the gradients around it.
STEP_IS_LATE = [
    *(("call", 0), ("prepare", 0), ("arrive", 0), ("answer", 0)),
    *(("call", 1), ("prepare", 1), ("run", 0), ("give up", 1), ("look", 1)),
    *(("call", 2), ("prepare", 2), ("arrive", 2), ("answer", 2), ("gap", 0), ("run", 2)),
]


def test_a_number_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a number that was given up, one more fault and a restart break no invariant, unless
    the restarted server takes a request under that number.
    """
    late = partial(explore, "GSG", faults=3, restarts=1, way=STEP_IS_LATE)
    assert late().broken is None
    monkeypatch.setattr(ModelQueue, "settle", lambda *_: None)
    assert late().broken == "success_has_taken_effect"


def use_again(numbers: Numbers, number: int, _: Exception) -> None:
    """Use the number of each failed request again."""
    numbers.next = number


def send_under_another(submission: Submission) -> Any:
    """Begin each attempt but the first with a number of its own."""
    if submission._retries is not None and submission.numbers is not None:
        submission.number = submission.numbers.take()
    return send(submission)


def check_late(sequencer: Sequencer, turn: Turn) -> None:
    """Count what was received until now as known at the call."""
    turn.called = sequencer.now()
    check(sequencer, turn)


def take_turn_at_once(sequencer: Sequencer, *arguments: Any, **options: Any) -> Turn:
    """Let each turn come as soon as it is taken."""
    turn = take_turn(sequencer, *arguments, **options)
    turn.has_come.set()
    return turn


send, check, take_turn = Submission.send, Sequencer.check, Sequencer.take_turn
#: A method, what it does by mistake, and the invariant that this breaks.
MISTAKES: dict[str, tuple[type, str, Any, str]] = {
    "an unknown number is used again": (
        Numbers,
        "renumber",
        use_again,
        "number_names_one_request",
    ),
    "an attempt has its own number": (
        Submission,
        "send",
        send_under_another,
        "request_is_accepted_once",
    ),
    "turns come at once": (
        Sequencer,
        "take_turn",
        take_turn_at_once,
        "step_has_its_gradient",
    ),
    "a receipt counts for earlier calls": (
        Sequencer,
        "check",
        check_late,
        "step_has_its_gradient",
    ),
    "a failure stops also when it is known": (
        Block,
        "receive",
        lambda _: None,
        "stop_has_a_reason",
    ),
    "an unsettled failure is told": (
        Sequencer,
        "is_settled",
        lambda *_: True,
        "failure_is_known_first",
    ),
    "the server stops nothing": (
        ModelQueue,
        "require_success",
        lambda _: None,
        "step_has_its_gradient",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_breaks_an_invariant(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this mistake in the client or the server, two faults and a restart suffice for a state
    that breaks an invariant.
    """
    owner, method, mistaken, invariant = MISTAKES[mistake]
    monkeypatch.setattr(owner, method, mistaken)
    found = explore("GSG", faults=2, restarts=1)
    assert found.broken == invariant, found


def test_a_journal_that_is_written_after_the_answer() -> None:
    """A request that a restarted server does not know, though its client has the answer, breaks an
    invariant.
    """
    assert (
        explore("GSG", faults=2, restarts=1, writes_first=False).broken == "step_has_its_gradient"
    )
