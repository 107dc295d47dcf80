"""Which failures are tried again, after how long, and when to give up. The only table of statuses.

    status or failure              verdict      meaning
    -----------------------------  -----------  -------------------------------------------------------------
    no connection, time-out        RETRY        try again after a growing, random delay
    408, 425, 500 and above        RETRY        as above
    429                            COOL_DOWN    as above, and everybody who shares the limit slows down
    402                            PAUSE        the account is blocked; try again every few seconds for a while
    410                            RESUBMIT     the promise is gone; asking again cannot help
    a success that cannot be read  REPEAT       something on the way spoiled it; the same request again, three times in all
    400 without a body             REPEAT       as above: proxies say so, servers say why
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
from typing import TYPE_CHECKING, TypeVar

import attrs

from tinker._clock import Clock
from tinker._http.observers import Observers
from tinker.errors import APIConnectionError, APIError, APIResponseValidationError, APIStatusError
from tinker.observing import RequestRetry

if TYPE_CHECKING:
    from tinker.lib.retry_handler import RetryConfig

logger = logging.getLogger("tinker")
T = TypeVar("T")

MAX_HINT_SECONDS = 60.0
HINTED_SECONDS = 2 * MAX_HINT_SECONDS  # so that the longest hint is followed by another try
PAUSE_SECONDS = 5.0  # between tries while the account is blocked
RESUBMISSIONS = 10  # of one sample whose results get lost
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


class Fate(enum.Enum):
    """What became of a request that failed."""

    UNSEEN = "unseen"  # the server has not read it
    REFUSED = "refused"  # the server read it, and does not carry it out
    UNKNOWN = "unknown"  # the server may have accepted it


# An optional endpoint that answers one of these does not exist on this server.
ABSENT_STATUSES = frozenset({404, 405, 501})
# What gateways answer for a server that they do not reach.
GATEWAY_STATUSES = frozenset({502, 503, 504})
# The path exists, but not for this method.
WRONG_METHOD_STATUS = 405
# The answer of a long poll that came to nothing yet.
PENDING_STATUS = 408
# These on a submission may mean that the server does not read the form of the body.
UNREADABLE_STATUSES = frozenset({400, 415, 422})
# Of these, the one that is about the form alone.
UNSUPPORTED_MEDIA_STATUS = 415
# What a server answers that did not expect its own failure; some fail so on the form of a body.
UNEXPECTED_STATUS = 500
# These say that a request was read, its number included, and is not carried out.
REFUSAL_STATUSES = frozenset({400, 409, 422})
# Below 500, these alone leave open whether the server accepted the request.
_UNKNOWN_STATUSES = frozenset({408, 410})
# These on a poll say, with a text, that the request failed.
FAILED_STATUSES = frozenset({400, 422})
# The credential is refused.
UNAUTHENTICATED_STATUS = 401
# Without a body it is an answer of a proxy in front of the server.
PROXY_STATUS = 400
# What object stores answer to a signed URL that has expired.
EXPIRED_URL_STATUSES = frozenset({400, 401, 403})
# The session is over.
GONE_STATUS = 410
# The server does not know a session, or something that was made in it.
LOST_STATUSES = frozenset({404, GONE_STATUS})


@attrs.frozen(kw_only=True)
class Policy:
    """How long one kind of call is tried; 0 means one try.

    ``total_seconds`` counts from the first try, or from the last answer that asked for patience (402, 429). How long those are
    heeded counts from the first try: ``cool_down_seconds_total`` (None: as long as other failures) and
    ``pause_seconds_total``. Other failures whose answer says when to come back are heeded for at least ``HINTED_SECONDS``,
    where 429 is heeded so long. ``fails_fast`` means that 429 is not waited out at all.
    """

    name: str
    total_seconds: float
    base_delay: float = 0.5
    max_delay: float = 10.0
    cool_down_seconds_total: float | None = None
    pause_seconds_total: float = 3600.0
    fails_fast: bool = False

    def limit(self, verdict: Verdict, *, hinted: bool = False) -> float:
        """The seconds for failures of this verdict, ``hinted`` when the server said when to come back."""
        if verdict is Verdict.PAUSE:
            return self.pause_seconds_total
        if verdict is Verdict.COOL_DOWN and self.cool_down_seconds_total is not None:
            return self.cool_down_seconds_total
        if hinted:
            return max(self.total_seconds, min(HINTED_SECONDS, self.limit(Verdict.COOL_DOWN)))
        return self.total_seconds

    def within(self, seconds: float | None) -> Policy:
        """This policy, given up no later than after ``seconds``; itself for None."""
        if seconds is None:
            return self
        return attrs.evolve(
            self,
            total_seconds=min(self.total_seconds, seconds),
            cool_down_seconds_total=min(self.limit(Verdict.COOL_DOWN), seconds),
            pause_seconds_total=min(self.pause_seconds_total, seconds),
        )


START = Policy(name="session start", total_seconds=60.0, cool_down_seconds_total=HINTED_SECONDS)
SUBMIT = Policy(name="submission", total_seconds=300.0)
# A server that is busy with others may say so for hours; one that says nothing is given up like everywhere.
SAMPLE = Policy(name="sampling", total_seconds=300.0, base_delay=1.0, cool_down_seconds_total=7200.0)
POLL = Policy(name="polling", total_seconds=300.0)
ONE_SHOT = Policy(name="one shot", total_seconds=0.0)
# Somebody waits for these, who should hear of a blocked account at once.
REST = Policy(name="REST call", total_seconds=60.0, cool_down_seconds_total=HINTED_SECONDS, pause_seconds_total=0.0)
# The server answers 503 until it has written the archive.
ARCHIVE = Policy(name="archive", total_seconds=600.0, base_delay=30.0, max_delay=30.0, pause_seconds_total=0.0)
# Files; counted from the last byte that came.
DOWNLOAD = Policy(name="download", total_seconds=300.0, pause_seconds_total=0.0)


def sampling_policy(wanted: RetryConfig | None) -> Policy:
    """How the requests of a sampler are tried, where code for the official client says: not again, or for so long at most."""
    if wanted is None:
        return SAMPLE
    if not wanted.enable_retry_logic:
        return SAMPLE.within(0.0)
    return SAMPLE.within(wanted.progress_timeout if wanted.enable_stuck_detection else None)


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
    if status == PROXY_STATUS and error.body is None:
        verdict = Verdict.REPEAT
    wish = error.response.headers.get("x-should-retry")
    if wish == "false" and verdict in (Verdict.RETRY, Verdict.COOL_DOWN, Verdict.REPEAT):
        return Verdict.FATAL
    if wish == "true" and verdict is Verdict.FATAL:
        return Verdict.RETRY
    return verdict


def fate_of(error: BaseException) -> Fate:
    """What became of the request, over all of its attempts: one that may have been accepted is not refused by a later one."""
    if not isinstance(error, APIError):
        return Fate.UNSEEN  # nothing was sent
    return Fate.UNKNOWN if error.may_have_arrived else _last_fate(error)


def _last_fate(error: APIError) -> Fate:
    if isinstance(error, APIConnectionError):
        return Fate.UNSEEN if error.never_connected else Fate.UNKNOWN
    if not isinstance(error, APIStatusError):
        return Fate.UNKNOWN
    status = error.status_code
    if status in REFUSAL_STATUSES:
        return Fate.REFUSED
    if status in ABSENT_STATUSES or (status < 500 and status not in _UNKNOWN_STATUSES):
        return Fate.UNSEEN
    return Fate.UNKNOWN


def retry_after(headers: Mapping[str, str], clock: Clock) -> float | None:
    """The seconds that are waited for a server's hint, None without one."""
    seconds = requested_delay(headers, clock)
    return None if seconds is None else min(seconds, MAX_HINT_SECONDS)


def requested_delay(headers: Mapping[str, str], clock: Clock) -> float | None:
    """Seconds the server asks to wait: ``retry-after-ms``, ``retry-after`` in seconds or as a date; None without a hint."""
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
    try:
        return email.utils.parsedate_to_datetime(value).timestamp() - clock.wall()
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        return None


def delay_before(policy: Policy, error: BaseException, retries: int, clock: Clock) -> float:
    """Seconds to wait before retry number ``retries`` (from 0)."""
    if judge(error) is Verdict.PAUSE:
        return PAUSE_SECONDS
    ceiling = min(policy.max_delay, policy.base_delay * 2.0 ** min(retries, 32))
    jittered = ceiling * clock.random()
    hint = _hint(error, clock)
    return jittered if hint is None else hint + min(jittered, 1.0)


def _hint(error: BaseException, clock: Clock) -> float | None:
    return retry_after(error.response.headers, clock) if isinstance(error, APIStatusError) else None


class Attempts:
    """The failures of one call so far; decides whether there is another try, and lets it be known."""

    def __init__(self, policy: Policy, observers: Observers, what: str) -> None:
        self._policy = policy
        self._observers = observers
        self._what = what
        self._clock = observers.clock
        self._started = self._patient_since = self._clock.monotonic()
        self.count: int = 0
        self._unread = 0
        self._may_have_arrived = False

    def next_delay(self, error: APIError) -> float:
        """Seconds until the next try; raises ``error`` itself, with the attempts noted, when there is none."""
        verdict = judge(error)
        error.may_have_arrived = self._may_have_arrived
        self._may_have_arrived = fate_of(error) is Fate.UNKNOWN
        delay = delay_before(self._policy, error, self.count, self._clock)
        self.count += 1
        self._unread += verdict is Verdict.REPEAT
        now = self._clock.monotonic()
        limit = self._policy.limit(verdict, hinted=_hint(error, self._clock) is not None)
        if self._is_final(verdict) or now + delay - self._since(verdict, now) > limit:
            if self.count > 1:
                elapsed = now - self._started
                error.add_note(f"{self._policy.name}: {self.count} attempts in {elapsed:.1f} s; this was the last error")
            raise error
        self._tell(error, verdict, delay)
        return delay

    def _is_final(self, verdict: Verdict) -> bool:
        if verdict is Verdict.COOL_DOWN and self._policy.fails_fast:
            return True
        return verdict in (Verdict.FATAL, Verdict.RESUBMIT) or self._policy.total_seconds == 0 or self._unread == READINGS

    def _since(self, verdict: Verdict, now: float) -> float:
        """From when the time for this verdict counts. A server that asks for patience is alive."""
        if verdict in (Verdict.COOL_DOWN, Verdict.PAUSE):
            self._patient_since = now
            return self._started
        return self._patient_since

    def _tell(self, error: APIError, verdict: Verdict, delay: float) -> None:
        """An event, and one line when a burst begins and from time to time while it lasts; the rest only at DEBUG."""
        if self._observers:
            self._observers.tell(RequestRetry(operation=self._what, failures=self.count, delay_seconds=delay, error=error))
        level = logging.WARNING if self._observers.is_news(f"{self._what} {verdict.value}") else logging.DEBUG
        if verdict is Verdict.PAUSE:
            logger.log(level, "%s is paused: %s; asking again every %g s", self._what, error, PAUSE_SECONDS)
        else:
            shown = str(error).removesuffix(".")
            logger.log(level, "%s: %s; attempt %d failed, next in %.1f s", self._what, shown, self.count, delay)

    def reset(self) -> None:
        """Forget what went wrong: the server made progress."""
        self.count = self._unread = 0
        self._may_have_arrived = False
        self._started = self._patient_since = self._clock.monotonic()


async def run(
    policy: Policy,
    attempt: Callable[[], Awaitable[T]],
    observers: Observers,
    *,
    what: str,
    on_cool_down: Callable[[APIStatusError, float], None] | None = None,
    sleep: Callable[[float], Awaitable[None]] | None = None,
) -> T:
    """Call ``attempt`` until it succeeds or the policy gives up, then raise the last error.

    ``on_cool_down`` is told of every COOL_DOWN and the seconds that it lasts, before they are slept, by ``sleep`` if given.
    """
    attempts = Attempts(policy, observers, what)
    while True:
        try:
            return await attempt()
        except APIError as error:
            if on_cool_down is not None and isinstance(error, APIStatusError) and judge(error) is Verdict.COOL_DOWN:
                on_cool_down(error, delay_before(policy, error, attempts.count, observers.clock))
            delay = attempts.next_delay(error)
        await (sleep or observers.clock.sleep)(delay)
