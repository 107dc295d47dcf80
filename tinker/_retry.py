"""Which failures are tried again, after how long, and when to give up. The only table of statuses.

    status or failure              verdict      meaning
    -----------------------------  -----------  -------------------------------------------------------------
    no connection, time-out        RETRY        try again after a growing, random delay
    408, 425, 500 and above        RETRY        as above
    429                            COOL_DOWN    as above, and everybody who shares the limit slows down
    402                            PAUSE        the account is blocked; try again every few seconds for a while
    410                            RESUBMIT     the promise is gone; asking again cannot help
    a success that cannot be read  REPEAT       something on the way spoiled it; the same request again, three times in all
    501, 505 and any other status  FATAL        trying again cannot help

``x-should-retry: true`` or ``false`` on an answer overrides RETRY and FATAL. Requests carry numbers and idempotency
keys, by which servers tell a repetition. Delays use full jitter: uniform between 0 and
``min(max_delay, base_delay * 2 ** n)`` for the n-th retry, n from 0. A server's ``Retry-After`` is a floor for the delay, up
to ``MAX_HINT_SECONDS``; a longer hint is cut to that.
"""

from __future__ import annotations

import email.utils
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import attrs

from tinker._clock import Clock
from tinker.errors import APIConnectionError, APIError, APIResponseValidationError, APIStatusError

logger = logging.getLogger("tinker")
T = TypeVar("T")

MAX_HINT_SECONDS = 60.0
PAUSE_SECONDS = 5.0  # between tries while the account is blocked
READINGS = 3  # of answers that cannot be read, since the last one that could


class Verdict(enum.Enum):
    """What to do about a failure."""

    RETRY = "retry"
    COOL_DOWN = "cool down"
    PAUSE = "pause"
    RESUBMIT = "resubmit"
    REPEAT = "repeat"
    FATAL = "fatal"


_BY_STATUS = {
    402: Verdict.PAUSE,
    408: Verdict.RETRY,
    410: Verdict.RESUBMIT,
    425: Verdict.RETRY,
    429: Verdict.COOL_DOWN,
    501: Verdict.FATAL,
    505: Verdict.FATAL,
}

# An optional endpoint that answers one of these does not exist on this server.
ABSENT_STATUSES = frozenset({404, 405, 501})
# The path exists, but not for this method.
WRONG_METHOD_STATUS = 405
# The answer of a long poll that came to nothing yet.
PENDING_STATUS = 408
# These on a submission may mean that the server does not read the form of the body.
UNREADABLE_STATUSES = frozenset({400, 415, 422})
# These on a poll say, with a text, that the request failed.
FAILED_STATUSES = frozenset({400, 422})
# The credential is refused.
UNAUTHENTICATED_STATUS = 401
# What object stores answer to a signed URL that has expired.
EXPIRED_URL_STATUSES = frozenset({400, 401, 403})
# The session is over.
GONE_STATUS = 410


@attrs.frozen(kw_only=True)
class Policy:
    """How long one kind of call is tried. ``total_seconds`` counts from the first try; 0 means one try."""

    name: str
    total_seconds: float
    base_delay: float = 0.5
    max_delay: float = 10.0
    pause_seconds_total: float = 3600.0

    def within(self, seconds: float | None) -> Policy:
        """This policy, given up no later than after ``seconds``; itself for None."""
        if seconds is None or seconds >= max(self.total_seconds, self.pause_seconds_total):
            return self
        total, pauses = min(self.total_seconds, seconds), min(self.pause_seconds_total, seconds)
        return attrs.evolve(self, total_seconds=total, pause_seconds_total=pauses)


START = Policy(name="session start", total_seconds=60.0)
SUBMIT = Policy(name="submission", total_seconds=300.0)
SAMPLE = Policy(name="sampling", total_seconds=7200.0, base_delay=1.0)
POLL = Policy(name="polling", total_seconds=300.0)
ONE_SHOT = Policy(name="one shot", total_seconds=0.0)
# Somebody waits for these, who should hear of a blocked account at once.
REST = Policy(name="REST call", total_seconds=60.0, pause_seconds_total=0.0)
# The server answers 503 until it has written the archive.
ARCHIVE = Policy(name="archive", total_seconds=600.0, base_delay=30.0, max_delay=30.0, pause_seconds_total=0.0)
# Files; counted from the last byte that came.
DOWNLOAD = Policy(name="download", total_seconds=300.0, pause_seconds_total=0.0)


def judge(error: BaseException) -> Verdict:
    """The verdict on a failure; FATAL for anything that is not an APIError."""
    if isinstance(error, APIConnectionError):
        return Verdict.RETRY
    if isinstance(error, APIResponseValidationError):
        return Verdict.REPEAT
    if not isinstance(error, APIStatusError):
        return Verdict.FATAL
    status = error.status_code
    verdict = _BY_STATUS.get(status, Verdict.RETRY if status >= 500 else Verdict.FATAL)
    wish = error.response.headers.get("x-should-retry")
    if wish == "false" and verdict in (Verdict.RETRY, Verdict.COOL_DOWN):
        return Verdict.FATAL
    if wish == "true" and verdict is Verdict.FATAL:
        return Verdict.RETRY
    return verdict


def retry_after(headers: Mapping[str, str], clock: Clock) -> float | None:
    """Seconds the server asks to wait: ``retry-after-ms``, ``retry-after`` in seconds or as a date; None without a hint."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        seconds = _seconds(value, scale, clock)
        if seconds is not None and seconds > 0:
            return min(seconds, MAX_HINT_SECONDS)
    return None


def _seconds(value: str, scale: float, clock: Clock) -> float | None:
    try:
        seconds = float(value) * scale
        return seconds if seconds == seconds else None
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(value).timestamp() - clock.wall()
    except (ValueError, TypeError, OverflowError):
        return None


def delay_before(policy: Policy, error: BaseException, retries: int, clock: Clock) -> float:
    """Seconds to wait before retry number ``retries`` (from 0)."""
    if judge(error) is Verdict.PAUSE:
        return PAUSE_SECONDS
    ceiling = min(policy.max_delay, policy.base_delay * 2.0 ** min(retries, 32))
    jittered = ceiling * clock.random()
    hint = retry_after(error.response.headers, clock) if isinstance(error, APIStatusError) else None
    return jittered if hint is None else hint + min(jittered, 1.0)


class Attempts:
    """The failures of one call so far; decides whether there is another try."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._started = clock.monotonic()
        self.count = 0
        self._unread = 0

    def next_delay(self, error: APIError) -> float:
        """Seconds until the next try; raises ``error`` itself, with the attempts noted, when there is none."""
        verdict = judge(error)
        delay = delay_before(self._policy, error, self.count, self._clock)
        self.count += 1
        self._unread += verdict is Verdict.REPEAT
        elapsed = self._clock.monotonic() - self._started
        limit = self._policy.pause_seconds_total if verdict is Verdict.PAUSE else self._policy.total_seconds
        hopeless = verdict in (Verdict.FATAL, Verdict.RESUBMIT) or self._policy.total_seconds == 0 or self._unread == READINGS
        if hopeless or elapsed + delay > limit:
            if self.count > 1:
                error.add_note(f"{self._policy.name}: {self.count} attempts in {elapsed:.1f} s; this was the last error")
            raise error
        return delay

    def reset(self) -> None:
        """Forget what went wrong: the server made progress."""
        self.count = self._unread = 0
        self._started = self._clock.monotonic()


async def run(
    policy: Policy,
    attempt: Callable[[int], Awaitable[T]],
    clock: Clock,
    *,
    what: str,
    on_cool_down: Callable[[float], None] | None = None,
) -> T:
    """Call ``attempt`` with its number (0, 1, ...) until it succeeds or the policy gives up, then raise the last error.

    ``on_cool_down`` is told the delay of every COOL_DOWN, before it is slept.
    """
    attempts = Attempts(policy, clock)
    while True:
        try:
            return await attempt(attempts.count)
        except APIError as error:
            delay = attempts.next_delay(error)
            if on_cool_down is not None and judge(error) is Verdict.COOL_DOWN:
                on_cool_down(delay)
            _report(what, error, attempts.count, delay)
        await clock.sleep(delay)


def _report(what: str, error: APIError, count: int, delay: float) -> None:
    """One line when a burst begins and at every tenth failure; the rest only at DEBUG."""
    level = logging.WARNING if count == 1 or count % 10 == 0 else logging.DEBUG
    if judge(error) is Verdict.PAUSE:
        logger.log(level, "%s is paused: %s; asking again every %g s", what, error, PAUSE_SECONDS)
        return
    logger.log(level, "%s: %s; attempt %d failed, next in %.1f s", what, error, count, delay)
