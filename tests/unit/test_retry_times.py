"""Retry times: when the total time starts, and what progress resets."""

from __future__ import annotations

import attrs
import httpx
import msgspec
import pytest

from tinker import errors
from tinker._http.retry import MAX_DECODE_ATTEMPTS, PAUSE_SECONDS, Fate, Policy, fate_of, judge
from tinker._http.submission import Fail, Retries

REQUEST = httpx.Request("POST", "http://server/api/v1/x")
POLICY = Policy(total_seconds=100.0, base_delay=1.0, max_delay=4.0, pause_seconds_total=1000.0)


@attrs.define
class Time:
    """Simulated time."""

    now: float = 1000.0

    def attempts(self, policy: Policy = POLICY) -> Attempts:
        return Attempts(self, Retries(policy, self.now, lambda: 1.0))


@attrs.define
class Attempts:
    """The failures of one call in simulated time."""

    time: Time
    retries: Retries

    def next_delay(self, error: errors.APIError) -> float:
        """Return the seconds until the next attempt; raise the error if there is none."""
        step = self.retries.after(error, self.time.now)
        if isinstance(step, Fail):
            raise step.error
        return step.seconds

    def reset(self) -> None:
        self.retries.reset(self.time.now)


def status(code: int, **headers: str) -> errors.APIStatusError:
    response = httpx.Response(
        code, headers={k.replace("_", "-"): v for k, v in headers.items()}, request=REQUEST
    )
    return errors.status_error_type(code)(f"Error code: {code}", response=response, body="why")


def garbled() -> errors.APIResponseValidationError:
    return errors.APIResponseValidationError(httpx.Response(200, request=REQUEST), None)


@pytest.mark.parametrize("code", [402, 429])
def test_time_counts_from_the_last_hint(code: int) -> None:
    """A server that has just sent a hint is alive: other failures have their full time from then
    on.
    """
    time = Time()
    attempts = time.attempts(msgspec.structs.replace(POLICY, cool_down_seconds_total=1000.0))
    time.now += 95
    attempts.next_delay(status(code))
    time.now += 95
    attempts.next_delay(status(503))
    time.now += 10
    with pytest.raises(errors.InternalServerError):
        attempts.next_delay(status(503))


@pytest.mark.parametrize(("code", "seconds"), [(402, 1000.0), (429, 500.0)])
def test_hints_count_from_the_first_attempt(code: int, seconds: float) -> None:
    """The total time for hints is not extended by further hints."""
    time = Time()
    attempts = time.attempts(msgspec.structs.replace(POLICY, cool_down_seconds_total=500.0))
    end = time.now + seconds
    while time.now + PAUSE_SECONDS <= end:
        time.now += attempts.next_delay(status(code))
    with pytest.raises(errors.APIStatusError):
        attempts.next_delay(status(code))


def test_an_attempt_at_the_deadline_is_made() -> None:
    """The last delay may end exactly when the total time does, and not later."""
    for late, allowed in ((99.0, True), (99.001, False)):
        time = Time()
        attempts = time.attempts()
        time.now += late
        if allowed:
            assert attempts.next_delay(status(503)) == 1.0
        else:
            with pytest.raises(errors.InternalServerError):
                attempts.next_delay(status(503))


def test_the_last_error_has_the_number_of_attempts() -> None:
    """After several attempts the error has a note on their number and time; a first, final one has
    none.
    """
    time = Time()
    attempts = time.attempts()
    attempts.next_delay(status(503))
    time.now += 7.5
    with pytest.raises(errors.NotFoundError) as caught:
        attempts.next_delay(status(404))
    assert caught.value.__notes__ == ["Gave up after 2 attempts in 7.5 s; this is the last error."]
    with pytest.raises(errors.NotFoundError) as alone:
        Time().attempts().next_delay(status(404))
    assert not hasattr(alone.value, "__notes__")


def test_progress_resets_earlier_failures() -> None:
    """A reset restarts delays, times and the count of unreadable responses."""
    time = Time()
    attempts = time.attempts()
    for delay in (1.0, 2.0, 4.0, 4.0):
        assert attempts.next_delay(status(503)) == delay
    for _ in range(MAX_DECODE_ATTEMPTS - 1):
        attempts.next_delay(garbled())
    time.now += 99
    attempts.reset()
    assert attempts.retries.count == 0
    assert attempts.next_delay(status(503)) == 1.0
    for _ in range(MAX_DECODE_ATTEMPTS - 1):
        attempts.next_delay(garbled())
    time.now += 90
    with pytest.raises(errors.APIResponseValidationError) as caught:
        attempts.next_delay(garbled())
    assert caught.value.__notes__ == [
        f"Gave up after {MAX_DECODE_ATTEMPTS + 1} attempts in 90.0 s; this is the last error."
    ]


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (ValueError("x"), Fate.UNSEEN),
        (errors.APIConnectionError(request=REQUEST), Fate.UNKNOWN),
        (errors.APITimeoutError(REQUEST), Fate.UNKNOWN),
        (garbled(), Fate.UNKNOWN),
        (status(400), Fate.REFUSED),
        (status(401), Fate.UNSEEN),
        (status(403), Fate.UNSEEN),
        (status(404), Fate.UNSEEN),
        (status(405), Fate.UNSEEN),
        (status(408), Fate.UNKNOWN),
        (status(409), Fate.REFUSED),
        (status(410), Fate.UNKNOWN),
        (status(413), Fate.UNSEEN),
        (status(422), Fate.REFUSED),
        (status(429), Fate.UNSEEN),
        (status(500), Fate.UNKNOWN),
        (status(501), Fate.UNSEEN),
        (status(503), Fate.UNKNOWN),
    ],
)
def test_what_became_of_a_request(error: Exception, fate: Fate) -> None:
    """Each failure states whether the server has read the request, has refused it, or may have
    accepted it.
    """
    assert fate_of(error) is fate


def test_an_earlier_attempt_may_have_arrived() -> None:
    """A refusal of a later attempt does not settle an earlier one that was cut off; a reset forgets
    that one.
    """
    attempts = Time().attempts()
    attempts.next_delay(errors.APIConnectionError(request=REQUEST))
    refusal = status(422)
    with pytest.raises(errors.UnprocessableEntityError):
        attempts.next_delay(refusal)
    assert fate_of(refusal) is Fate.UNKNOWN
    attempts = Time().attempts()
    attempts.next_delay(status(429))
    later = status(422)
    with pytest.raises(errors.UnprocessableEntityError):
        attempts.next_delay(later)
    assert fate_of(later) is Fate.REFUSED
    attempts = Time().attempts()
    attempts.next_delay(errors.APIConnectionError(request=REQUEST))
    attempts.reset()
    forgotten = status(422)
    with pytest.raises(errors.UnprocessableEntityError):
        attempts.next_delay(forgotten)
    assert fate_of(forgotten) is Fate.REFUSED


def test_requests_that_never_ran_were_not_seen() -> None:
    """If no connection was made, or the server reports that it did not begin, the server has not
    seen the request.
    """
    error = errors.APIConnectionError(request=REQUEST)
    error.never_ran = True
    assert fate_of(error) is Fate.UNSEEN
    assert judge(error).value == "retry"


@pytest.mark.parametrize("seconds", [None, 0.0, 30.0, 10_000.0])
def test_impatience_shortens_every_kind_of_wait(seconds: float | None) -> None:
    """A policy limited to some seconds is never longer than they are, and never
    longer than before.
    """
    policy = msgspec.structs.replace(POLICY, cool_down_seconds_total=500.0)
    short = policy.within(seconds)
    limit = float("inf") if seconds is None else seconds
    found = (short.total_seconds, short.cool_down_seconds_total, short.pause_seconds_total)
    assert found == (min(100.0, limit), min(500.0, limit), min(1000.0, limit))
    assert POLICY.within(20.0).cool_down_seconds_total == 20.0
