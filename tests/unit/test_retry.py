"""The retry table, row by row, on a simulated clock that sleeping advances."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from email.utils import formatdate

import attrs
import httpx
import msgspec
import pytest
from support.tolerances import FLOAT64, near

from tinker import errors
from tinker._http.observers import Observers
from tinker._http.responses import read_requested_delay
from tinker._http.retry import (
    HINTED_SECONDS,
    MAX_HINT_SECONDS,
    ONE_SHOT,
    PAUSE_SECONDS,
    REST,
    SAMPLE,
    START,
    SUBMIT,
    Policy,
    Verdict,
    judge,
)
from tinker._http.submission import Fail, Retries, read_hint
from tinker._loop import Clock

REQUEST = httpx.Request("POST", "http://server/api/v1/x")


@attrs.define
class FakeTime:
    """A clock whose sleeps are recorded and take no time."""

    now: float = 1000.0
    slept: list[float] = attrs.field(factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def clock(self, random: float = 1.0) -> Clock:
        return Clock(monotonic=lambda: self.now, wall=lambda: self.now, random=lambda: random)


def status(code: int, body: object = "why", **headers: str) -> errors.APIStatusError:
    response = httpx.Response(
        code, headers={k.replace("_", "-"): v for k, v in headers.items()}, request=REQUEST
    )
    error = errors.status_error_type(code)(f"Error code: {code}", response=response, body=body)
    error.retry_after = read_requested_delay(response.headers, FakeTime().clock())
    return error


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (errors.APIConnectionError(request=REQUEST), Verdict.RETRY),
        (errors.APITimeoutError(REQUEST), Verdict.RETRY),
        (status(400), Verdict.FATAL),
        (status(400, body=None), Verdict.MALFORMED),
        (status(400, body=None, x_should_retry="false"), Verdict.FATAL),
        (status(401), Verdict.FATAL),
        (status(402), Verdict.PAUSE),
        (status(403), Verdict.FATAL),
        (status(404), Verdict.FATAL),
        (status(408), Verdict.RETRY),
        (status(409), Verdict.FATAL),
        (status(410), Verdict.RESUBMIT),
        (status(422), Verdict.FATAL),
        (status(425), Verdict.RETRY),
        (status(429), Verdict.COOL_DOWN),
        (status(500), Verdict.RETRY),
        (status(501), Verdict.FATAL),
        (status(502), Verdict.RETRY),
        (status(503), Verdict.RETRY),
        (status(503, x_should_retry="false"), Verdict.FATAL),
        (status(429, x_should_retry="false"), Verdict.FATAL),
        (status(409, x_should_retry="true"), Verdict.RETRY),
        (errors.RequestFailedError("x", "r", "user"), Verdict.FATAL),
        (
            errors.APIResponseValidationError(httpx.Response(200, request=REQUEST), None),
            Verdict.MALFORMED,
        ),
        (ValueError("x"), Verdict.FATAL),
    ],
)
def test_verdicts(error: BaseException, verdict: Verdict) -> None:
    """Each failure has the verdict of the table at the top of statuses.py."""
    assert judge(error) is verdict


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
        ({"retry-after": formatdate(1007.0, usegmt=True)}, 7.0),
        ({"retry-after": formatdate(900.0, usegmt=True)}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """The server's hint is read in seconds, in milliseconds and as a date, capped, and ignored if
    invalid.
    """
    error = status(429, **{name.replace("-", "_"): value for name, value in headers.items()})
    # of times near 1,000 seconds
    assert read_hint(error) == (None if seconds is None else near(seconds, 2, 1e4, FLOAT64))


def attempt_run(
    failures: Iterable[errors.APIError], policy: Policy, random: float = 1.0
) -> tuple[FakeTime, object]:
    """Run an attempt that fails with each of these in turn and then succeeds; return the clock, and
    the value or the error.
    """
    time = FakeTime()
    clock = time.clock(random)
    retries, observers = Retries(policy, clock.monotonic(), clock.random), Observers(clock)
    for failure in failures:
        step = retries.after(failure, clock.monotonic())
        if isinstance(step, Fail):
            return time, step.error
        observers.report_retry("x", step)
        time.sleep(step.seconds)
    return time, "done"


def test_delays_double_up_to_the_longest() -> None:
    """Without a hint the upper limit of the delay doubles from the base to the longest, and the
    random draw scales it.
    """
    time, value = attempt_run([status(503) for _ in range(7)], SUBMIT)
    assert value == "done"
    assert time.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    half, _ = attempt_run([status(503) for _ in range(3)], SUBMIT, random=0.5)
    assert half.slept == [0.25, 0.5, 1.0]


def test_the_log_has_one_line_for_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A traceback from the server is cut to one line in the log; the error has all of it."""
    said = "it broke\n" + "  File somewhere\n" * 1000
    error = status(500)
    error.args = (said,)
    attempt_run([error], SUBMIT)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("x: it broke File somewhere")
    assert "\n" not in line
    assert len(line) < 400


def test_hint_is_a_floor() -> None:
    """The retry waits at least as long as the hint, with at most a second of jitter added."""
    time, _ = attempt_run([status(429, retry_after="7")], SUBMIT, random=0.5)
    assert time.slept == [7.25]


def test_pause_is_steady() -> None:
    """A blocked account is retried at a constant interval."""
    time, _ = attempt_run([status(402), status(402)], SUBMIT)
    assert time.slept == [PAUSE_SECONDS, PAUSE_SECONDS]


def test_gives_up_at_the_total_with_the_last_error() -> None:
    """When the total time is up the last real error is raised, unchanged except for a note on the
    attempts.
    """
    time, error = attempt_run(
        [status(500 + i % 4 * 2) for i in range(1000) if i % 4 != 0.5], SUBMIT
    )
    assert isinstance(error, errors.APIError)
    assert sum(time.slept) <= SUBMIT.total_seconds
    assert "attempts in" in error.__notes__[0]


@pytest.mark.parametrize("code", [400, 401, 404, 409, 410, 422])
def test_permanent_failures_are_not_retried(code: int) -> None:
    """A failure that a retry cannot help is raised at once."""
    time, error = attempt_run([status(code)], SUBMIT)
    assert isinstance(error, errors.APIStatusError)
    assert time.slept == []


def test_rate_limits_are_retried_for_longer() -> None:
    """A sample whose server sends hints is retried for hours; without hints or with failures, for
    minutes from then on.
    """
    patient, error = attempt_run((status(429) for _ in itertools.count()), SAMPLE)
    assert isinstance(error, errors.RateLimitError)
    assert (
        SAMPLE.total_seconds
        < SAMPLE.limit(Verdict.COOL_DOWN) - 11
        < sum(patient.slept)
        <= SAMPLE.limit(Verdict.COOL_DOWN)
    )
    silence = (errors.APITimeoutError(REQUEST) for _ in itertools.count())
    mixed, error = attempt_run(itertools.chain((status(429) for _ in range(200)), silence), SAMPLE)
    assert isinstance(error, errors.APITimeoutError)
    assert 1900 < sum(mixed.slept) <= 2000 + SAMPLE.total_seconds


@pytest.mark.parametrize("policy", [START, REST, SUBMIT, SAMPLE])
@pytest.mark.parametrize("code", [429, 503])
def test_the_longest_hint_is_followed_by_another_attempt(policy: Policy, code: int) -> None:
    """A retry hint of a minute or longer is followed by one more attempt."""
    time, value = attempt_run([status(code, retry_after="600")], policy)
    assert value == "done"
    assert MAX_HINT_SECONDS <= sum(time.slept) <= MAX_HINT_SECONDS + 1


@pytest.mark.parametrize("code", [429, 503])
def test_retry_hints_extend_the_deadline_to_two_minutes(code: int) -> None:
    """Interactive calls are retried for two minutes while the server sends hints, and for one
    minute without.
    """
    time, error = attempt_run((status(code, retry_after="30") for _ in itertools.count()), REST)
    assert isinstance(error, errors.APIStatusError)
    assert 60 < sum(time.slept) <= HINTED_SECONDS
    time, error = attempt_run((status(503) for _ in itertools.count()), REST)
    assert sum(time.slept) <= 60


@pytest.mark.parametrize("code", [429, 503])
def test_patience_overrides_hints(code: int) -> None:
    """A patience of a few seconds overrides a retry hint of a minute."""
    time, error = attempt_run([status(code, retry_after="60")], REST.within(2.0))
    assert isinstance(error, errors.APIStatusError)
    assert time.slept == []


def test_failing_fast() -> None:
    """A policy that fails fast raises the first rate limit; other failures are retried as usual."""
    fast = msgspec.structs.replace(SUBMIT, fails_fast=True)
    time, error = attempt_run([status(503), status(429, retry_after="7"), status(503)], fast)
    assert isinstance(error, errors.RateLimitError)
    assert time.slept == [0.5]


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_unreadable_responses(failures: int) -> None:
    """The third unreadable response is the last."""
    garbled = errors.APIResponseValidationError(httpx.Response(200, request=REQUEST), None)
    time, outcome = attempt_run([status(503), *[garbled] * failures], SUBMIT)
    assert outcome is (garbled if failures == 3 else "done")
    assert len(time.slept) == min(failures, 2) + 1


def test_one_shot_is_one_shot() -> None:
    """A call that is not worth repeating is made once."""
    time, error = attempt_run([status(503)], ONE_SHOT)
    assert isinstance(error, errors.InternalServerError)
    assert time.slept == []
