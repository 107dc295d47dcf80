"""What follows each pair of outcomes of one request: form, number, token, fields and waits, without
a loop or a server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random

import httpx
import msgspec
import pytest

from tinker import errors
from tinker._basics.config import WireChoice
from tinker._http.retry import SUBMIT, Fate, RetrySettings, fate_of
from tinker._http.submission import (
    Fail,
    Findings,
    FormAttempt,
    Negotiation,
    Refresh,
    RefusedFields,
    Submission,
    Variant,
    Wait,
)
from tinker._training.order import Numbers

REQUEST = httpx.Request("POST", "http://server/api/v1/forward_backward")
EXPIRED = 'Bearer error="invalid_token"'
UNKNOWN_FIELD = {"detail": [{"type": "extra_forbidden", "loc": ["body", "known_failure"]}]}


class Body(msgspec.Struct):
    """The JSON form of a request; ``known_failure`` has its default."""

    seq_id: int
    known_failure: int = 0


def lost(**attributes: bool) -> errors.APIConnectionError:
    error = errors.APIConnectionError(request=REQUEST)
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def status(
    code: int, body: object = None, seconds: float | None = None, challenge: str = ""
) -> errors.APIStatusError:
    body = body or {"detail": "why"}
    response = httpx.Response(code, headers={"www-authenticate": challenge}, request=REQUEST)
    error = errors.status_error_type(code)(
        f"Error code: {code} - {body}", response=response, body=body
    )
    error.retry_after = seconds
    return error


#: Name -> the failure of an exchange under a number.
OUTCOMES: dict[str, Callable[[int], errors.APIError]] = {
    "lost": lambda number: lost(never_ran=True),
    "late": lambda number: lost(),
    "token": lambda number: status(401, challenge=EXPIRED),
    "401": lambda number: status(401),
    "402": lambda number: status(402),
    "409": lambda number: status(409),
    "409=7": lambda number: status(409, {"detail": f"expected 7, got {number}"}),
    "410": lambda number: status(410),
    "415": lambda number: status(415),
    "422": lambda number: status(422, {"detail": [{"type": "missing", "loc": ["body", "data"]}]}),
    "field": lambda number: status(422, UNKNOWN_FIELD),
    "429": lambda number: status(429),
    "429+3": lambda number: status(429, seconds=3.0),
    "500": lambda number: status(500),
    "503": lambda number: status(503),
    "501": lambda number: status(501),
    "bad": lambda number: errors.APIResponseValidationError(
        httpx.Response(200, request=REQUEST), None
    ),
}


class Server:
    """A server that refuses one request, under the number 5 at first; it has seen 1 to 4."""

    def __init__(self, wire: WireChoice) -> None:
        self.numbers = Numbers(Findings())
        self.numbers.take(5)
        self.fields = RefusedFields()
        self.now = 0.0
        forms = FormAttempt(Negotiation(wire, Findings()), has_sparse=False)
        self.submission = Submission(
            "x",
            SUBMIT,
            RetrySettings(),
            0.0,
            lambda: 1.0,
            self.fields,
            may_refresh=True,
            number=5,
            numbers=self.numbers,
            forms=forms,
        )
        self.sent = Variant(5, forms.form)

    def refuse(self, outcome: str) -> str:
        """Refuse the request and return what follows: ``0.5j7`` waits for half a second and sends
        JSON under the number 7.
        """
        is_json = self.sent.form is not None and self.sent.form.media == "json"
        record = self.fields.without("x", Body(self.sent.number)) if is_json else None
        step = self.submission.fail(
            OUTCOMES[outcome](self.sent.number), self.sent, record, self.now
        )
        if isinstance(step, Fail):
            return "-"
        self.sent = self.follow(step)
        assert self.sent.form is not None
        waited = (
            "t"
            if isinstance(step, Refresh)
            else f"{step.seconds:g}"
            if isinstance(step, Wait)
            else ""
        )
        return f"{waited}{self.sent.form.media[0]}{self.sent.number}"

    def follow(self, step: Variant | Refresh | Wait) -> Variant:
        if isinstance(step, Refresh):
            return step.then
        if isinstance(step, Variant):
            return step
        self.now += step.seconds
        return self.submission.send()


#: Row: the first outcome, or none; column: the one that follows it. A token is refused (token), a
#: field at its default (field). p5 sends protobuf under 5, j7 JSON under 7, after t with another
#: token, after a number with a wait; - gives up.
UNSETTLED = """
       lost  late token   401   402   409 409=7   410   415   422 field   429 429+3   500   503   501   bad
none  0.5p5 0.5p5   tp5    j5   5p5    j5    j5     -    j5    j5    j5 0.5p5 3.5p5    j5 0.5p5    j5 0.5p5
lost    1p5   1p5   tp5    j5   5p5    j5    j5     -    j5    j5    j5   1p5   4p5    j5   1p5    j5   1p5
late    1p5   1p5   tp5    j5   5p5    j5    j5     -    j5    j5    j5   1p5   4p5    j5   1p5    j5   1p5
token 0.5p5 0.5p5    j5    j5   5p5    j5    j5     -    j5    j5    j5 0.5p5 3.5p5    j5 0.5p5    j5 0.5p5
401   0.5j5 0.5j5   tj5     -   5j5     -     -     -     -     -    j5 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
402     1p5   1p5   tp5    j5   5p5    j5    j5     -    j5    j5    j5   1p5   4p5    j5   1p5    j5   1p5
409   0.5j5 0.5j5   tj5     -   5j5     -     -     -     -     -    j5 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
409=7 0.5j5 0.5j5   tj5    p7   5j5    p7    p7     -    p7    p7    j5 0.5j5 3.5j5 0.5j5 0.5j5    p7 0.5j5
415   0.5j5 0.5j5   tj5     -   5j5     -    p7     -     -     -    j5 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
422   0.5j5 0.5j5   tj5     -   5j5     -     -     -     -     -    j5 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
field 0.5j5 0.5j5   tj5     -   5j5     -     -     -     -     -    j5 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
429     1p5   1p5   tp5    j5   5p5    j5    j5     -    j5    j5    j5   1p5   4p5    j5   1p5    j5   1p5
429+3   1p5   1p5   tp5    j5   5p5    j5    j5     -    j5    j5    j5   1p5   4p5    j5   1p5    j5   1p5
500   0.5j5 0.5j5   tj5 0.5p5 0.5p5 0.5p5 0.5p5 0.5p5 0.5p5 0.5p5    j5 0.5p5 0.5p5 0.5p5 0.5p5 0.5p5 0.5j5
503     1p5   1p5   tp5    j5   5p5    j5    j5     -    j5    j5    j5   1p5   4p5    j5   1p5    j5   1p5
501   0.5j5 0.5j5   tj5     -   5j5     -    p7     -     -     -    j5 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
bad     1p5   1p5   tp5    j5   5p5    j5    j5     -    j5    j5    j5   1p5   4p5    j5   1p5    j5   1p5
"""
SETTLED = """
       lost  late token   401   402   409 409=7   410   415   422 field   429 429+3   500   503   501   bad
none  0.5j5 0.5j5   tj5     -   5j5     -    j7     -     -     -    j5 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
lost    1j5   1j5   tj5     -   5j5     -    j7     -     -     -    j5   1j5   4j5   1j5   1j5     -   1j5
late    1j5   1j5   tj5     -   5j5     -     -     -     -     -    j5   1j5   4j5   1j5   1j5     -   1j5
token 0.5j5 0.5j5     -     -   5j5     -    j7     -     -     -    j5 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
402     1j5   1j5   tj5     -   5j5     -    j7     -     -     -    j5   1j5   4j5   1j5   1j5     -   1j5
409=7 0.5j7 0.5j7   tj7     -   5j7     -     -     -     -     -    j7 0.5j7 3.5j7 0.5j7 0.5j7     - 0.5j7
field 0.5j5 0.5j5   tj5     -   5j5     -    j7     -     -     -     - 0.5j5 3.5j5 0.5j5 0.5j5     - 0.5j5
429     1j5   1j5   tj5     -   5j5     -    j7     -     -     -    j5   1j5   4j5   1j5   1j5     -   1j5
429+3   1j5   1j5   tj5     -   5j5     -    j7     -     -     -    j5   1j5   4j5   1j5   1j5     -   1j5
500     1j5   1j5   tj5     -   5j5     -     -     -     -     -    j5   1j5   4j5   1j5   1j5     -   1j5
503     1j5   1j5   tj5     -   5j5     -     -     -     -     -    j5   1j5   4j5   1j5   1j5     -   1j5
bad     1j5   1j5   tj5     -   5j5     -     -     -     -     -    j5   1j5   4j5   1j5   1j5     -   1j5
"""


def read_table(table: str) -> Iterator[tuple[list[str], str]]:
    """Yield each cell with the outcomes that lead to it."""
    head, *rows = table.strip("\n").splitlines()
    for row in rows:
        first, *cells = row.split()
        for second, cell in zip(head.split(), cells, strict=True):
            yield ([second] if first == "none" else [first, second]), cell


@pytest.mark.parametrize(("wire", "table"), [("auto", UNSETTLED), ("json", SETTLED)])
def test_what_follows_each_pair_of_outcomes(wire: WireChoice, table: str) -> None:
    """Every pair of outcomes leads to what the table states, and the table has
    every possible pair.
    """
    expected = {tuple(outcomes): cell for outcomes, cell in read_table(table)}
    found: dict[tuple[str, ...], str] = {}
    for first in OUTCOMES:
        found[first,] = Server(wire).refuse(first)
        for second in OUTCOMES if found[first,] != "-" else ():
            server = Server(wire)
            server.refuse(first)
            found[first, second] = server.refuse(second)
    assert found == expected


def test_a_form_refused_then_a_busy_server_then_a_number() -> None:
    """After a wait the form that was not refused is kept; the request under another number starts
    with the form in use.
    """
    server = Server("auto")
    assert [server.refuse(one) for one in ("415", "429", "409=7")] == ["j5", "0.5j5", "p7"]


def test_a_wait_that_the_server_named_grows_by_a_second_at_most() -> None:
    """However often a request has been refused, the client adds little to the time after which the
    server wants it.
    """
    server = Server("json")
    assert [server.refuse(outcome) for outcome in ("503", "503", "503", "429+3")] == [
        "0.5j5",
        "1j5",
        "2j5",
        "4j5",
    ]


def test_a_request_begins_in_the_form_in_use() -> None:
    """A request that waits for its turn takes the form that is found meanwhile."""
    wire = Negotiation("auto", Findings())
    attempt = FormAttempt(wire, has_sparse=False)
    wire.note_config_answered(False)
    assert attempt.next_attempt().media == "json"


@pytest.mark.parametrize(
    ("outcomes", "sent"),
    [
        pytest.param("403 ok | ok", "1 | 1", id="unseen"),
        pytest.param("403 | 409 ok | ok", "1 | 1 2 | 3", id="it has been seen after all"),
        pytest.param("422 | ok", "1 | 2", id="refused"),
        pytest.param("late 401 | ok", "1 1 | 2", id="it may have been accepted"),
        pytest.param("422 | 400=1 ok | ok", "1 | 2 1 | 2", id="a refused number is expected"),
        pytest.param("422 | 400=1 ok | ok | 400=1 ok", "1 | 2 1 | 2 | 3", id="and expected again"),
        pytest.param("ok | 400=1 ok", "1 | 2", id="an accepted number is expected"),
        pytest.param("400=7 ok | ok", "1 7 | 8", id="a later number is expected"),
        pytest.param("400=7 ok | 400=1 ok", "1 7 | 8", id="and then the one left behind"),
    ],
)
def test_the_numbers_of_requests(outcomes: str, sent: str) -> None:
    """A number is used again only if no request can have been accepted under it, or if the server
    that refused one expects it.
    """
    numbers, found = Numbers(Findings()), list[str]()
    for request in outcomes.split(" | "):
        submission = Submission(
            *("x", SUBMIT, RetrySettings(), 0.0, lambda: 1.0, RefusedFields()),
            number=numbers.take(),
            numbers=numbers,
        )
        tried, variant = list[int](), submission.send()
        for outcome in request.split():
            tried.append(variant.number)
            if outcome == "ok":
                submission.accept()
                break
            step = submission.fail(fail_exchange(outcome, variant.number), variant, None, 0.0)
            if isinstance(step, Fail):
                break
            variant = step if isinstance(step, Variant) else submission.send()
        found.append(" ".join(map(str, tried)))
    assert " | ".join(found) == sent


def fail_exchange(outcome: str, number: int) -> errors.APIError:
    code, _, expected = outcome.partition("=")
    if expected:
        return status(int(code), {"detail": f"expected {expected}, got {number}"})
    return OUTCOMES[outcome](number) if outcome in OUTCOMES else status(int(code))


@pytest.mark.parametrize("wire", ["auto", "json"])
def test_no_request_runs_under_two_numbers(wire: WireChoice) -> None:
    """Once the server may have accepted a request, it is never sent under another number, after any
    three outcomes.
    """
    for outcomes in itertools.product(OUTCOMES, repeat=3):
        server, may_have_run = Server(wire), False
        for outcome in outcomes:
            may_have_run |= fate_of(OUTCOMES[outcome](5)) is Fate.UNKNOWN
            before = server.sent.number
            if server.refuse(outcome) == "-":
                break
            assert server.sent.number == before or not may_have_run, outcomes


@pytest.mark.parametrize("wire", ["auto", "json"])
def test_every_request_ends(wire: WireChoice) -> None:
    """Whatever responses a server sends, in whatever order, the request ends within the time of its
    policy.
    """
    random = Random(7)
    for _ in range(200):
        server, favourites = Server(wire), random.sample(sorted(OUTCOMES), 3)
        steps = 0
        while server.refuse(random.choice(favourites)) != "-":
            steps += 1
            assert steps < 2000
        assert server.now <= SUBMIT.pause_seconds_total + SUBMIT.total_seconds
