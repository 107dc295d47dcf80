"""What a status of the API means, and how long each kind of call is retried."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec
from tinker_wire.models import ErrorCode

from tinker.errors import (
    APIConnectionError,
    APIError,
    APIResponseValidationError,
    APIStatusError,
    CircuitOpenError,
    RequestFailedError,
    ResponseTooLargeError,
)


class Verdict(enum.Enum):
    """What to do about a failure."""

    RETRY = "retry"
    COOL_DOWN = "cool down"
    PAUSE = "pause"
    RESUBMIT = "resubmit"
    MALFORMED = "malformed"
    FATAL = "fatal"


class Fate(enum.Enum):
    """What became of a request that failed."""

    UNSEEN = "unseen"  # the server has not read it, or says that it is as if it had not
    REFUSED = "refused"  # the server read it, and does not carry it out
    UNKNOWN = "unknown"  # the server may have accepted it


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
# Refusals that say that the server lacks the requested feature.
_UNOFFERED_STATUSES = frozenset({501, 505})
# What gateways answer for a server that they do not reach.
GATEWAY_STATUSES = frozenset({502, 503, 504})
# The path exists, but not for this method.
WRONG_METHOD_STATUS = 405
# The response of a long poll that came to nothing yet.
PENDING_STATUSES = frozenset({408})
# These on a submission may mean that the server does not read the form of the body.
UNSUPPORTED_FORMAT_STATUSES = frozenset({400, 415, 422})
# Of these, the one that is about the form alone.
_UNSUPPORTED_MEDIA_STATUS = 415
# The status of a server's unexpected failure; some servers fail so on the form of a body.
UNEXPECTED_STATUS = 500
_UNEXPECTED_STATUSES = frozenset({UNEXPECTED_STATUS})
# These say that a request was read, its number included, and is not carried out.
REJECTED_STATUSES = frozenset({400, 409, 422})
# Whatever the status, a refusal with this code says that the number can be used for another
# request.
_NUMBER_IS_FREE: ErrorCode = "seq_id_free"
# Below 500, these alone leave open whether the server accepted the request.
_UNKNOWN_STATUSES = frozenset({408, 410})
# These on a poll say, with a text, that the request failed.
FAILED_STATUSES = frozenset({400, 422})
# The credential is refused.
UNAUTHENTICATED_STATUS = 401
_EXPIRED = 'error="invalid_token"'
# The proxy asks for a credential, or refuses the one it got.
PROXY_UNAUTHENTICATED_STATUS = 407
PROXY_HINT = (
    "write the proxy's user name and password into its address (TINKER_PROXY): "
    "http://name:password@host:port"
)
# Without a body it is a response of a proxy in front of the server.
_PROXY_STATUS = 400
# What object stores answer to a signed URL that has expired.
_EXPIRED_URL_STATUSES = frozenset({400, 401, 403})
# The session is over.
_GONE_STATUSES = frozenset({410})
# The server does not know a session, or something that was made in it.
LOST_STATUSES = _GONE_STATUSES | {404}


def is_success(status: int) -> bool:
    """Return whether a status says that the request was carried out."""
    return 200 <= status < 300


def judge(error: BaseException) -> Verdict:
    """Return the verdict on a failure; FATAL for anything that is not an APIError."""
    if isinstance(error, APIResponseValidationError | ResponseTooLargeError):
        return Verdict.MALFORMED
    if isinstance(error, APIConnectionError):
        return Verdict.RETRY
    if not isinstance(error, APIStatusError):
        return Verdict.FATAL
    status = error.status_code
    verdict = _judge_status(status)
    if status == _PROXY_STATUS and error.body is None:
        verdict = Verdict.MALFORMED
    wish = error.header("x-should-retry")
    if wish == "false" and verdict in (Verdict.RETRY, Verdict.COOL_DOWN, Verdict.MALFORMED):
        return Verdict.FATAL
    if wish == "true" and verdict is Verdict.FATAL:
        return Verdict.RETRY
    return verdict


def _judge_status(status: int) -> Verdict:
    return _BY_STATUS.get(status, Verdict.RETRY if status >= 500 else Verdict.FATAL)


def is_retryable_status(status: int) -> bool:
    """Return whether a request that is answered with this status, and nothing else that says more,
    is sent again.
    """
    return _judge_status(status) in (Verdict.RETRY, Verdict.COOL_DOWN)


def fate_of(error: BaseException) -> Fate:
    """Return the fate of a request over all attempts: one that may have been accepted is not
    refused by a later one.
    """
    if isinstance(error, CircuitOpenError) and error.__cause__ is not None:
        return fate_of(error.__cause__)
    if not isinstance(error, APIError):
        return Fate.UNSEEN  # nothing was sent
    return Fate.UNKNOWN if error.may_have_arrived else _last_fate(error)


def _last_fate(error: APIError) -> Fate:
    if isinstance(error, APIConnectionError):
        return Fate.UNSEEN if error.never_ran else Fate.UNKNOWN
    if not isinstance(error, APIStatusError):
        return Fate.UNKNOWN
    status = error.status_code
    if error.code == _NUMBER_IS_FREE:
        return Fate.UNSEEN
    if status in REJECTED_STATUSES:
        return Fate.REFUSED
    if status in ABSENT_STATUSES or (status < 500 and status not in _UNKNOWN_STATUSES):
        return Fate.UNSEEN
    return Fate.UNKNOWN


def has_status(error: BaseException, statuses: frozenset[int]) -> bool:
    """Return whether a failure is a response with one of these statuses."""
    return isinstance(error, APIStatusError) and error.status_code in statuses


def is_token_expired(error: APIStatusError) -> bool:
    """Return whether a token is refused that another one can take the place of."""
    is_refused = error.status_code == UNAUTHENTICATED_STATUS
    return is_refused and _EXPIRED in (error.header("www-authenticate") or "")


def is_absent(error: BaseException) -> bool:
    """Return whether the server does not have an optional endpoint."""
    return has_status(error, ABSENT_STATUSES)


def is_lost(error: BaseException) -> bool:
    """Return whether the server does not know a session, or something that was made in it."""
    return has_status(error, LOST_STATUSES)


def is_pending(error: BaseException) -> bool:
    """Return whether a long poll came to nothing yet."""
    return has_status(error, PENDING_STATUSES)


def is_failed_result(error: BaseException) -> bool:
    """Return whether a poll was told that the request failed."""
    return has_status(error, FAILED_STATUSES) and judge(error) is not Verdict.MALFORMED


def is_expired_url(error: BaseException) -> bool:
    """Return whether an object store refused a signed URL, probably because it has expired."""
    return has_status(error, _EXPIRED_URL_STATUSES)


def is_session_over(error: BaseException) -> bool:
    """Return whether the response to a heartbeat means that no other one is wanted; 404 may be one
    lost record.
    """
    return has_status(error, (ABSENT_STATUSES | _GONE_STATUSES) - {404})


def is_format_refused(error: BaseException) -> bool:
    """Return whether a refusal may mean that the server does not read the form of the body."""
    return has_status(error, UNSUPPORTED_FORMAT_STATUSES)


def is_unexplained(error: BaseException) -> bool:
    """Return whether a server failed without a reason; some fail so on the form of a body."""
    return has_status(error, _UNEXPECTED_STATUSES) or judge(error) is Verdict.MALFORMED


def is_about_format(error: APIStatusError) -> bool:
    """Return whether a refusal says nothing about the content of the body."""
    return error.status_code >= UNEXPECTED_STATUS or error.status_code == _UNSUPPORTED_MEDIA_STATUS


def is_user_fault(error: BaseException) -> bool:
    """Return whether the response says that the request was wrong."""
    return (
        isinstance(error, APIStatusError)
        and 400 <= error.status_code < 500
        and not is_pending(error)
    )


def is_server_failure(error: BaseException) -> bool:
    """Return whether a failure is the server's, or of the way to it; a response to a wrong or an
    early request is none.
    """
    if isinstance(error, RequestFailedError):
        return error.category == "server"
    if not isinstance(error, APIStatusError):
        return isinstance(error, APIError)
    if judge(error) is Verdict.MALFORMED or is_pending(error):
        return True
    return error.status_code >= UNEXPECTED_STATUS and error.status_code not in _UNOFFERED_STATUSES


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
