"""What each failure means, and how long calls are retried, in simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from email.utils import formatdate

import httpx
import msgspec
import pytest
from support.tolerances import FLOAT64, near

from tinker import errors
from tinker._http.observers import Observers
from tinker._http.responses import read_requested_delay
from tinker._http.retry import (
    HINTED_SECONDS,
    MAX_DECODE_ATTEMPTS,
    MAX_HINT_SECONDS,
    ONE_SHOT,
    PAUSE_SECONDS,
    REST,
    SAMPLE,
    START,
    SUBMIT,
    Fate,
    Policy,
    Verdict,
    fate_of,
    judge,
)
from tinker._http.submission import Fail, Retries, read_hint
from tinker._loop import Clock

REQUEST = httpx.Request("POST", "http://server/api/v1/x")
POLICY = Policy(total_seconds=100.0, base_delay=1.0, max_delay=4.0, pause_seconds_total=1000.0)
WALL_SECONDS = 1000.0


def status(code: int, body: object = "why", **headers: str) -> errors.APIStatusError:
    response = httpx.Response(
        code, headers={k.replace("_", "-"): v for k, v in headers.items()}, request=REQUEST
    )
    error = errors.status_error_type(code)(f"Error code: {code}", response=response, body=body)
    clock = Clock(wall=lambda: WALL_SECONDS)
    error.retry_after = read_requested_delay(response.headers, clock)
    return error


def garbled() -> errors.APIResponseValidationError:
    return errors.APIResponseValidationError(httpx.Response(200, request=REQUEST), None)


def lost(*, never_ran: bool = False) -> errors.APIConnectionError:
    error = errors.APIConnectionError(request=REQUEST)
    error.never_ran = never_ran
    return error


@pytest.mark.parametrize(
    ("error", "verdict", "fate"),
    [
        (lost(), Verdict.RETRY, Fate.UNKNOWN),
        (lost(never_ran=True), Verdict.RETRY, Fate.UNSEEN),
        (errors.APITimeoutError(REQUEST), Verdict.RETRY, Fate.UNKNOWN),
        (garbled(), Verdict.MALFORMED, Fate.UNKNOWN),
        (status(400), Verdict.FATAL, Fate.REFUSED),
        (status(400, body=None), Verdict.MALFORMED, Fate.REFUSED),
        (status(400, body=None, x_should_retry="false"), Verdict.FATAL, Fate.REFUSED),
        (status(401), Verdict.FATAL, Fate.UNSEEN),
        (status(402), Verdict.PAUSE, Fate.UNSEEN),
        (status(403), Verdict.FATAL, Fate.UNSEEN),
        (status(404), Verdict.FATAL, Fate.UNSEEN),
        (status(405), Verdict.FATAL, Fate.UNSEEN),
        (status(408), Verdict.RETRY, Fate.UNKNOWN),
        (status(409), Verdict.FATAL, Fate.REFUSED),
        (status(409, x_should_retry="true"), Verdict.RETRY, Fate.REFUSED),
        (status(410), Verdict.RESUBMIT, Fate.UNKNOWN),
        (status(413), Verdict.FATAL, Fate.UNSEEN),
        (status(422), Verdict.FATAL, Fate.REFUSED),
        (status(425), Verdict.RETRY, Fate.UNSEEN),
        (status(429), Verdict.COOL_DOWN, Fate.UNSEEN),
        (status(429, x_should_retry="false"), Verdict.FATAL, Fate.UNSEEN),
        (status(500), Verdict.RETRY, Fate.UNKNOWN),
        (status(501), Verdict.FATAL, Fate.UNSEEN),
        (status(502), Verdict.RETRY, Fate.UNKNOWN),
        (status(503), Verdict.RETRY, Fate.UNKNOWN),
        (status(503, x_should_retry="false"), Verdict.FATAL, Fate.UNKNOWN),
        (errors.RequestFailedError("x", "r", "user"), Verdict.FATAL, Fate.UNSEEN),
        (ValueError("x"), Verdict.FATAL, Fate.UNSEEN),
    ],
)
def test_what_a_failure_means(error: Exception, verdict: Verdict, fate: Fate) -> None:
    """Each failure says whether to try again, and whether the server has read the request, has
    refused it, or may have accepted it.
    """
    assert (judge(error), fate_of(error)) == (verdict, fate)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "700"}, 0.7),
        ({"retry-after-ms": "700", "retry-after": "9"}, 0.7),
        ({"retry-after": "86400"}, MAX_HINT_SECONDS),
        ({"retry-after": formatdate(WALL_SECONDS + 7, usegmt=True)}, 7.0),
        ({"retry-after": formatdate(WALL_SECONDS - 100, usegmt=True)}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """The server's hint is read in seconds, in milliseconds and as a date, capped, and ignored if
    invalid.
    """
    error = status(429, **{name.replace("-", "_"): value for name, value in headers.items()})
    # of times near 1,000 seconds
    assert read_hint(error) == (None if seconds is None else near(seconds, 2, 1e4, FLOAT64))


class Attempts:
    """The attempts of one call, whose waits take no time."""

    def __init__(self, policy: Policy = POLICY, random: float = 1.0) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.retries = Retries(policy, self.now, lambda: random)

    def fail(self, *failures: errors.APIError, after: float = 0.0) -> list[float]:
        """Fail so many seconds later, and wait after each failure; return the waits. Raises the
        error with which the call is given up.
        """
        self.now += after
        for failure in failures:
            step = self.retries.after(failure, self.now)
            if isinstance(step, Fail):
                raise step.error
            self.slept.append(step.seconds)
            self.now += step.seconds
        return self.slept[len(self.slept) - len(failures) :]


def give_up(policy: Policy, failures: Iterable[errors.APIError]) -> tuple[Attempts, Exception]:
    """Fail until the call is given up; return the attempts and the error."""
    attempts = Attempts(policy)
    for failure in failures:
        try:
            attempts.fail(failure)
        except errors.APIError as error:
            return attempts, error
    raise AssertionError("it is not given up")


def endlessly(code: int, **headers: str) -> Iterable[errors.APIStatusError]:
    return (status(code, **headers) for _ in itertools.count())


def test_delays_double_up_to_the_longest() -> None:
    """Without a hint the upper limit of the delay doubles from the base to the longest, and the
    random draw scales it; a hint is waited for, and at most a second more.
    """
    assert Attempts(SUBMIT).fail(*[status(503)] * 7) == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert Attempts(SUBMIT, random=0.5).fail(*[status(503)] * 3) == [0.25, 0.5, 1.0]
    assert Attempts(SUBMIT, random=0.5).fail(status(429, retry_after="7")) == [7.25]


def test_the_log_has_one_line_for_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A traceback from the server is cut to one line in the log; the error has all of it."""
    error = status(500)
    error.args = ("it broke\n" + "  File somewhere\n" * 1000,)
    step = Attempts().retries.after(error, 0.0)
    assert not isinstance(step, Fail)
    Observers(Clock()).report_retry("x", step)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("x: it broke File somewhere")
    assert "\n" not in line
    assert len(line) < 400


FAST = msgspec.structs.replace(SUBMIT, fails_fast=True)


@pytest.mark.parametrize(
    ("policy", "failures", "slept"),
    [
        pytest.param(ONE_SHOT, [status(503)], [], id="one shot"),
        pytest.param(REST.within(2.0), [status(429, retry_after="60")], [], id="patience, 429"),
        pytest.param(REST.within(2.0), [status(503, retry_after="60")], [], id="patience, 503"),
        pytest.param(FAST, [status(503), status(429, retry_after="7")], [0.5], id="fails fast"),
        pytest.param(SUBMIT, [status(503), *[garbled()] * 3], [0.5, 1.0, 2.0], id="unreadable"),
    ],
)
def test_when_a_call_is_given_up(
    policy: Policy, failures: list[errors.APIError], slept: list[float]
) -> None:
    """A call is given up with the last of these failures, and not before."""
    attempts, error = give_up(policy, failures)
    assert (attempts.slept, error) == (slept, failures[-1])


@pytest.mark.parametrize(
    ("policy", "failures", "more_than", "at_most"),
    [
        pytest.param(SUBMIT, endlessly(503), 289, 300, id="failures"),
        pytest.param(REST, endlessly(503), 49, 60, id="of an interactive call"),
        pytest.param(REST, endlessly(503, retry_after="30"), 60, HINTED_SECONDS, id="hints"),
        pytest.param(REST, endlessly(429, retry_after="30"), 60, HINTED_SECONDS, id="hints of 429"),
        pytest.param(SAMPLE, endlessly(429), 7189, 7200, id="a busy server"),
        pytest.param(
            SAMPLE,
            itertools.chain(
                (status(429) for _ in range(200)),
                (errors.APITimeoutError(REQUEST) for _ in itertools.count()),
            ),
            1900,
            2000 + SAMPLE.total_seconds,
            id="a busy server that falls silent",
        ),
    ],
)
def test_how_long_a_call_is_tried(
    policy: Policy, failures: Iterable[errors.APIError], more_than: float, at_most: float
) -> None:
    """A server that says when to come back, or that it is busy, is asked for longer than one that
    fails or is silent.
    """
    attempts, _ = give_up(policy, failures)
    assert more_than < sum(attempts.slept) <= at_most


@pytest.mark.parametrize("policy", [START, REST, SUBMIT, SAMPLE])
@pytest.mark.parametrize("code", [429, 503])
def test_the_longest_hint_is_followed_by_another_attempt(policy: Policy, code: int) -> None:
    """A retry hint of a minute or longer is followed by one more attempt."""
    (slept,) = Attempts(policy).fail(status(code, retry_after="600"))
    assert MAX_HINT_SECONDS <= slept <= MAX_HINT_SECONDS + 1


@pytest.mark.parametrize("code", [402, 429])
def test_time_counts_from_the_last_hint(code: int) -> None:
    """A server that has just sent a hint is alive: other failures have their full time from then
    on.
    """
    attempts = Attempts(msgspec.structs.replace(POLICY, cool_down_seconds_total=1000.0))
    attempts.retries.after(status(code), 95)
    attempts.retries.after(status(503), 190)
    assert isinstance(attempts.retries.after(status(503), 200), Fail)


@pytest.mark.parametrize(("code", "seconds"), [(402, 1000.0), (429, 500.0)])
def test_hints_count_from_the_first_attempt(code: int, seconds: float) -> None:
    """The total time for hints is not extended by further hints."""
    policy = msgspec.structs.replace(POLICY, cool_down_seconds_total=500.0)
    attempts, _ = give_up(policy, endlessly(code))
    assert seconds - PAUSE_SECONDS < attempts.now <= seconds


@pytest.mark.parametrize(("late", "is_made"), [(99.0, True), (99.001, False)])
def test_an_attempt_at_the_deadline_is_made(late: float, is_made: bool) -> None:
    """The last delay may end exactly when the total time does, and not later."""
    assert isinstance(Attempts().retries.after(status(503), late), Fail) is not is_made


def test_the_last_error_has_the_number_of_attempts() -> None:
    """After several attempts the error has a note on their number and time; a first, final one has
    none.
    """
    attempts, later, alone = Attempts(), status(404), status(404)
    attempts.fail(status(503))
    with pytest.raises(errors.NotFoundError):
        attempts.fail(later, after=6.5)
    assert later.__notes__ == ["Gave up after 2 attempts in 7.5 s; this is the last error."]
    with pytest.raises(errors.NotFoundError):
        Attempts().fail(alone)
    assert not hasattr(alone, "__notes__")


def test_progress_resets_earlier_failures() -> None:
    """A reset restarts delays, times and the count of unreadable responses."""
    attempts = Attempts()
    assert attempts.fail(*[status(503)] * 4) == [1.0, 2.0, 4.0, 4.0]
    attempts.fail(*[garbled()] * (MAX_DECODE_ATTEMPTS - 1))
    attempts.now = 99.0
    attempts.retries.reset(attempts.now)
    assert attempts.retries.count == 0
    assert attempts.fail(status(503)) == [1.0]
    attempts.fail(*[garbled()] * (MAX_DECODE_ATTEMPTS - 1))
    attempts.now = 189.0
    with pytest.raises(errors.APIResponseValidationError) as caught:
        attempts.fail(garbled())
    assert caught.value.__notes__ == [
        f"Gave up after {MAX_DECODE_ATTEMPTS + 1} attempts in 90.0 s; this is the last error."
    ]


@pytest.mark.parametrize(
    ("first", "is_forgotten", "fate"),
    [
        (lost(), False, Fate.UNKNOWN),
        (lost(), True, Fate.REFUSED),
        (status(429), False, Fate.REFUSED),
    ],
)
def test_an_earlier_attempt_may_have_arrived(
    first: errors.APIError, is_forgotten: bool, fate: Fate
) -> None:
    """A refusal of a later attempt does not settle an earlier one that was cut off; a reset forgets
    that one.
    """
    attempts, refusal = Attempts(), status(422)
    attempts.fail(first)
    if is_forgotten:
        attempts.retries.reset(attempts.now)
    with pytest.raises(errors.UnprocessableEntityError):
        attempts.fail(refusal)
    assert fate_of(refusal) is fate


@pytest.mark.parametrize("seconds", [None, 0.0, 30.0, 10_000.0])
def test_impatience_shortens_every_kind_of_wait(seconds: float | None) -> None:
    """A policy limited to some seconds is never longer than they are, and never longer than
    before.
    """
    policy = msgspec.structs.replace(POLICY, cool_down_seconds_total=500.0)
    short = policy.within(seconds)
    limit = float("inf") if seconds is None else seconds
    found = (short.total_seconds, short.cool_down_seconds_total, short.pause_seconds_total)
    assert found == (min(100.0, limit), min(500.0, limit), min(1000.0, limit))
    assert POLICY.within(20.0).cool_down_seconds_total == 20.0
