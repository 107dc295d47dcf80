"""Decide when to retry a failed request and when to give up. The module `statuses` judges what a failure means.

Requests carry sequence numbers and idempotency keys, so servers recognize repeated requests. Delays use full jitter: uniform
between 0 and ``min(max_delay, base_delay * 2 ** n)`` for retry n, starting at 0. A server's ``Retry-After`` is the minimum
delay, up to ``MAX_HINT_SECONDS``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from tinker._clock import Clock
from tinker._http.observers import Observers
from tinker._http.statuses import Fate, Verdict, fate_of, judge
from tinker.errors import APIConnectionError, APIError, APIStatusError, RequestFailedError, TinkerError
from tinker.observing import RequestRetry

logger = logging.getLogger("tinker")

MAX_HINT_SECONDS = 60.0
HINTED_SECONDS = 2 * MAX_HINT_SECONDS  # so that the longest hint is followed by another try
PAUSE_SECONDS = 5.0  # between tries while the account is blocked
LINE_LENGTH = 300  # of what a server said, in the log
REPETITIONS = 3  # of one sample that the server failed to carry out
RESUBMISSIONS = 10  # of one sample whose results get lost
# For an address that is probably wrong: longer than a server on this machine takes to start.
WRONG_ADDRESS_SECONDS = 10.0
MAX_DECODE_ATTEMPTS = 3  # of responses that cannot be read, since the last one that could


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How long one kind of call is retried; 0 makes a single attempt.

    ``total_seconds`` starts with the first attempt, or with the last response that asked to wait (402, 429). Two limits start
    with the first attempt: ``cool_down_seconds_total`` for 429 (None uses ``total_seconds``) and ``pause_seconds_total`` for
    402. Other failures with a ``Retry-After`` are retried for at least ``HINTED_SECONDS``, if 429 is retried that long.
    An address that is probably wrong is tried for at most ``wrong_address_seconds_total``.
    ``fails_fast`` means that 429 is not retried. ``max_retries`` is the maximum number of retries; None sets no limit.
    """

    total_seconds: float
    base_delay: float = 0.5
    max_delay: float = 10.0
    cool_down_seconds_total: float | None = None
    pause_seconds_total: float = 3600.0
    wrong_address_seconds_total: float = WRONG_ADDRESS_SECONDS
    fails_fast: bool = False
    max_retries: int | None = None

    def limit(self, verdict: Verdict, *, hinted: bool = False) -> float:
        """Return the time limit for failures of this verdict; ``hinted`` if the server said when to retry."""
        if verdict is Verdict.PAUSE:
            return self.pause_seconds_total
        if verdict is Verdict.COOL_DOWN and self.cool_down_seconds_total is not None:
            return self.cool_down_seconds_total
        if hinted:
            return max(self.total_seconds, min(HINTED_SECONDS, self.limit(Verdict.COOL_DOWN)))
        return self.total_seconds

    def within(self, seconds: float | None) -> Policy:
        """Return this policy with a time limit of at most ``seconds``; the same policy for None."""
        if seconds is None:
            return self
        return msgspec.structs.replace(
            self,
            total_seconds=min(self.total_seconds, seconds),
            cool_down_seconds_total=min(self.limit(Verdict.COOL_DOWN), seconds),
            pause_seconds_total=min(self.pause_seconds_total, seconds),
        )


START = Policy(total_seconds=60.0, cool_down_seconds_total=HINTED_SECONDS)
SUBMIT = Policy(total_seconds=300.0)
# A server that is busy with others may say so for hours; one that says nothing is given up like everywhere.
SAMPLE = Policy(total_seconds=300.0, base_delay=1.0, cool_down_seconds_total=7200.0)
POLL = Policy(total_seconds=300.0)
ONE_SHOT = Policy(total_seconds=0.0)
# Somebody waits for these, who should hear of a blocked account at once.
REST = Policy(total_seconds=60.0, cool_down_seconds_total=HINTED_SECONDS, pause_seconds_total=0.0)
# The server answers 503 until it has written the archive.
ARCHIVE = Policy(total_seconds=600.0, base_delay=30.0, max_delay=30.0, pause_seconds_total=0.0)
# Files; counted from the last byte that came.
DOWNLOAD = Policy(total_seconds=300.0, pause_seconds_total=0.0)
FILE_UPLOAD = Policy(total_seconds=300.0, pause_seconds_total=0.0)


class RetrySettings(Protocol):
    """The fields of the official client's ``RetryConfig`` that have an effect."""

    enable_retry_logic: bool
    enable_stuck_detection: bool
    progress_timeout: float


def sampling_policy(wanted: RetrySettings | None) -> Policy:
    """Return the policy of a sampler for the given settings: a single attempt, or a shorter time limit."""
    if wanted is None:
        return SAMPLE
    if not wanted.enable_retry_logic:
        return SAMPLE.within(0.0)
    return SAMPLE.within(wanted.progress_timeout if wanted.enable_stuck_detection else None)


def retry_after(headers: Mapping[str, str], clock: Clock) -> float | None:
    """Return the seconds to wait for a server's hint; None if it gave no hint."""
    seconds = read_requested_delay(headers, clock)
    return None if seconds is None else min(seconds, MAX_HINT_SECONDS)


def read_requested_delay(headers: Mapping[str, str], clock: Clock) -> float | None:
    """Read the seconds to wait from ``retry-after-ms``, or from ``retry-after`` in seconds or as a date. None means no hint."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        seconds = _seconds(value, scale, clock)
        if seconds is not None and seconds > 0:
            return seconds
    return None


def _seconds(value: str, scale: float, clock: Clock) -> float | None:
    try:
        seconds = float(value) * scale
        return seconds if seconds == seconds else None
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime  # a date is rare

    try:
        return parsedate_to_datetime(value).timestamp() - clock.wall()
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        return None


def longest_delay(first: float, longest: float, retries: int) -> float:
    """Return a delay that doubles with each retry (from 0), up to a maximum."""
    return min(longest, first * 2.0 ** min(retries, 32))


def delay_before(policy: Policy, error: BaseException, retries: int, clock: Clock) -> float:
    """Return the seconds to wait before retry number ``retries`` (from 0)."""
    if judge(error) is Verdict.PAUSE:
        return PAUSE_SECONDS
    jittered = longest_delay(policy.base_delay, policy.max_delay, retries) * clock.random()
    hint = _hint(error, clock)
    return jittered if hint is None else hint + min(jittered, 1.0)


def _hint(error: BaseException, clock: Clock) -> float | None:
    return retry_after(error.response.headers, clock) if isinstance(error, APIStatusError) else None


class Attempts:
    """The failures of one call so far. Decides whether to retry, and reports it."""

    def __init__(self, policy: Policy, observers: Observers, what: str, began: float | None = None) -> None:
        self.policy = policy
        self._observers = observers
        self._what = what
        self._clock = observers.clock
        self._started = self._patient_since = self._clock.monotonic() if began is None else began
        self.count: int = 0
        self._unread = 0
        self._may_have_arrived = False

    def next_delay(self, error: APIError) -> float:
        """Return the seconds until the next attempt. If there is none, raise ``error`` with a note about the attempts."""
        verdict = judge(error)
        error.may_have_arrived = self._may_have_arrived
        self._may_have_arrived = fate_of(error) is Fate.UNKNOWN
        delay = delay_before(self.policy, error, self.count, self._clock)
        self.count += 1
        self._unread += verdict is Verdict.MALFORMED
        now = self._clock.monotonic()
        limit = self.policy.limit(verdict, hinted=_hint(error, self._clock) is not None)
        if isinstance(error, APIConnectionError) and error.wrong_address:
            limit = min(limit, self.policy.wrong_address_seconds_total)
        left = limit - (now - self._since(verdict, now))
        if self._is_final(verdict) or delay > left:
            if self.count > 1:
                elapsed = now - self._started
                error.add_note(f"Gave up after {self.count} attempts in {elapsed:.1f} s; this is the last error.")
            raise error
        self._tell(error, verdict, delay, left)
        return delay

    def next_repetition(self, error: RequestFailedError) -> float:
        """Return the seconds until a sample that the server failed to carry out is submitted again; else raise ``error``."""
        delay = longest_delay(self.policy.base_delay, self.policy.max_delay, self.count) * self._clock.random()
        left = self.policy.total_seconds - (self._clock.monotonic() - self._started)
        limit = REPETITIONS if self.policy.max_retries is None else min(REPETITIONS, self.policy.max_retries)
        if error.category != "server" or self.count >= limit or delay > left or left <= 0:
            raise error
        self.count += 1
        self._tell(error, Verdict.RETRY, delay, left)
        return delay

    def _is_final(self, verdict: Verdict) -> bool:
        if verdict is Verdict.COOL_DOWN and self.policy.fails_fast:
            return True
        return (
            verdict in (Verdict.FATAL, Verdict.RESUBMIT)
            or self.policy.total_seconds == 0
            or self._unread == MAX_DECODE_ATTEMPTS
            or (self.policy.max_retries is not None and self.count > self.policy.max_retries)
        )

    def _since(self, verdict: Verdict, now: float) -> float:
        """Return the start of the time limit for this verdict. A server that asks clients to wait is reachable."""
        if verdict in (Verdict.COOL_DOWN, Verdict.PAUSE):
            self._patient_since = now
            return self._started
        return self._patient_since

    def _tell(self, error: TinkerError, verdict: Verdict, delay: float, left: float) -> None:
        """Send an event and log a line. The first failure and later ones at intervals are warnings; the rest are DEBUG."""
        if self._observers:
            self._observers.notify(RequestRetry(operation=self._what, failures=self.count, delay_seconds=delay, error=error))
        level = logging.WARNING if self._observers.should_log(f"{self._what} {verdict.value}") else logging.DEBUG
        if verdict is Verdict.PAUSE:
            logger.log(level, "%s is paused: %s; retrying every %g s", self._what, _to_line(str(error)), PAUSE_SECONDS)
        else:
            shown = _to_line(str(error)).removesuffix(".").removesuffix(f" ({self._what})")
            retry = f"attempt {self.count} failed, retrying in {delay:.1f} s, for up to {left:.0f} s"
            logger.log(level, "%s: %s; %s", self._what, shown, retry)

    def reset(self) -> None:
        """Forget earlier failures, because the server made progress."""
        self.count = self._unread = 0
        self._may_have_arrived = False
        self._started = self._patient_since = self._clock.monotonic()


def _to_line(text: str) -> str:
    """Return a text as one log line. Servers may send tracebacks; the raised error contains the whole text."""
    line = " ".join(text.split())
    return line if len(line) <= LINE_LENGTH else f"{line[:LINE_LENGTH]} ..."
