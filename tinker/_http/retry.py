"""The policies of retries: how long each kind of call is retried, and after which delays.
`submission` decides by them.

Requests carry sequence numbers and idempotency keys, so servers recognize repeated requests. Delays
use full jitter: uniform between 0 and ``min(max_delay, base_delay * 2 ** n)`` for retry n, starting
at 0. A server's ``Retry-After`` is the minimum delay, up to ``MAX_HINT_SECONDS``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tinker._http.statuses import Verdict
from tinker.errors import APIConnectionError

MAX_HINT_SECONDS = 60.0
HINTED_SECONDS = 2 * MAX_HINT_SECONDS  # so that the longest hint is followed by another try
PAUSE_SECONDS = 5.0  # between tries while the account is blocked
REPETITIONS = 3  # of one sample that the server failed to carry out
RESUBMISSIONS = 10  # of one sample whose results get lost
# For an address that is probably wrong: longer than a server on this machine takes to start.
WRONG_ADDRESS_SECONDS = 10.0
MAX_DECODE_ATTEMPTS = 3  # of responses that cannot be read, since the last one that could


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How long one kind of call is retried; 0 makes a single attempt.

    ``total_seconds`` starts with the first attempt, or with the last response that asked to wait
    (402, 429). Two limits start with the first attempt: ``cool_down_seconds_total`` for 429 (None
    uses ``total_seconds``) and ``pause_seconds_total`` for
    402. Other failures with a ``Retry-After`` are retried for at least ``HINTED_SECONDS``, if 429
         is retried that long.
    An address that is probably wrong is tried for at most ``wrong_address_seconds_total``.
    ``fails_fast`` means that 429 is not retried. ``max_retries`` is the maximum number of retries;
    None sets no limit.
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
        """Return the time limit for failures of this verdict; ``hinted`` if the server said when to
        retry.
        """
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


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The user's settings of retries."""

    patience_seconds: float | None = None
    max_retries: int | None = None
    fails_fast: bool = False

    def limit(self, policy: Policy) -> Policy:
        """Return a policy within these settings."""
        patience = self.patience_seconds
        return msgspec.structs.replace(
            policy.within(patience),
            max_retries=self.max_retries,
            fails_fast=policy.fails_fast or self.fails_fast,
            wrong_address_seconds_total=policy.wrong_address_seconds_total
            if patience is None
            else patience,
        )


START = Policy(total_seconds=60.0, cool_down_seconds_total=HINTED_SECONDS)
SUBMIT = Policy(total_seconds=300.0)
# A server that is busy with others may say so for hours; one that says nothing is given up like
# everywhere.
SAMPLE = Policy(total_seconds=300.0, base_delay=1.0, cool_down_seconds_total=7200.0)
POLL = Policy(total_seconds=300.0)
ONE_SHOT = Policy(total_seconds=0.0)
# Interactive requests, which should report a blocked account at once.
REST = Policy(total_seconds=60.0, cool_down_seconds_total=HINTED_SECONDS, pause_seconds_total=0.0)
# The server answers 503 until it has written the archive.
ARCHIVE = Policy(total_seconds=600.0, base_delay=30.0, max_delay=30.0, pause_seconds_total=0.0)
# Files; counted from the last byte that came.
DOWNLOAD = Policy(total_seconds=300.0, pause_seconds_total=0.0)
FILE_UPLOAD = Policy(total_seconds=300.0, pause_seconds_total=0.0)


class RetryableException(Exception):
    """An exception that the client never raises; code that catches it, or names it in a
    :class:`RetryConfig`, still works.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _official_exceptions() -> tuple[type[Exception], ...]:
    import httpx

    return (TimeoutError, APIConnectionError, httpx.TimeoutException, RetryableException)


@dataclass(unsafe_hash=True)
class RetryConfig:
    """How samples are retried: ``enable_retry_logic=False``, not at all; ``progress_timeout``, for
    so many seconds at most.

    ``enable_stuck_detection=False`` makes the latter the client's own. The other fields have no
    effect; delays, limits and what is retried are the client's.
    """

    max_connections: int = 1000
    progress_timeout: float = 7200
    retry_delay_base: float = 0.5
    retry_delay_max: float = 10.0
    jitter_factor: float = 0.25
    enable_retry_logic: bool = True
    enable_stuck_detection: bool = True
    retryable_exceptions: tuple[type[Exception], ...] = field(default_factory=_official_exceptions)

    def __post_init__(self) -> None:
        if self.max_connections <= 0:
            raise ValueError(f"max_connections must be positive, got {self.max_connections}")


def sampling_policy(wanted: RetryConfig | None) -> Policy:
    """Return the policy of a sampler for the given settings: a single attempt, or a shorter time
    limit.
    """
    if wanted is None:
        return SAMPLE
    if not wanted.enable_retry_logic:
        return SAMPLE.within(0.0)
    return SAMPLE.within(wanted.progress_timeout if wanted.enable_stuck_detection else None)


def longest_delay(first: float, longest: float, retries: int) -> float:
    """Return a delay that doubles with each retry (from 0), up to a maximum."""
    return min(longest, first * 2.0 ** min(retries, 32))
