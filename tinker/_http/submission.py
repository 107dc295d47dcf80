"""Decide when a request is sent again, what changes in it, and when it is given up.

A :class:`Submission` is one request until the server has it. It has no loop, no clock and no
connection: the transport sends what it says, and reports what came of it. After a failure, the
first row that applies decides (`statuses` judges failures):

    failure                                             next
    --------------------------------------------------  --------------------------------------------
    the token has expired                               get another token, then send the same; once
                                                        an attempt
    fields at their default are refused                 send without them
    the form of the body may be unread                  send in another form, under the same number
    it may pass: no connection, 429, 402, 5xx, ...      wait, then try again, as policy and settings
                                                        allow
    final, but the server expects another number        send under that number, with all its
                                                        attempts
    anything else                                       fail

What happens between two waits is one attempt. :class:`Retries` alone decides about polls and files,
and about samples that were accepted and have no result.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol, TypeAlias

import msgspec

from tinker._http import retry
from tinker._http.findings import RefusedFields
from tinker._http.forms import FormAttempt, WireFormat
from tinker._http.statuses import Fate, Verdict, fate_of, is_format_refused, is_token_expired, judge
from tinker.errors import (
    APIConnectionError,
    APIError,
    APIStatusError,
    RequestFailedError,
    TinkerError,
)


class Variant(msgspec.Struct, frozen=True):
    """Send the request, under this number and in this form if it has any."""

    number: int = 0
    form: WireFormat | None = None


class Refresh(msgspec.Struct, frozen=True):
    """Get another token, and send the same."""

    then: Variant


class Wait(msgspec.Struct, frozen=True):
    """Wait before the next attempt.

    ``failures`` are those so far, and ``left_seconds`` how long failures like ``error`` are still
    retried. After a 429, ``pause_seconds`` is for everybody who shares the limit.
    """

    seconds: float
    error: TinkerError
    verdict: Verdict
    failures: int
    left_seconds: float
    pause_seconds: float | None = None


class Fail(msgspec.Struct, frozen=True):
    """Give the request up. ``pause_seconds`` as of :class:`Wait`."""

    error: Exception
    pause_seconds: float | None = None


NextStep: TypeAlias = Variant | Refresh | Wait | Fail


class Numbering(Protocol):
    """The sequence numbers of the requests that a server runs in order."""

    def renumber(self, number: int, error: Exception) -> int | None:
        """Settle a number after a final failure; return another one to send the same request under,
        if there is one.
        """
        ...

    def accept(self, number: int) -> None:
        """Note that the server has the request of this number."""
        ...


class Retries:
    """The failures of one call since it began, or since the server made progress."""

    def __init__(self, policy: retry.Policy, began: float, random: Callable[[], float]) -> None:
        self.policy = policy
        self.count: int = 0
        self._random = random
        self.reset(began)

    def reset(self, now: float) -> None:
        """Forget earlier failures, because the server made progress."""
        self.count = self._unread = self._lost = 0
        self._may_have_arrived = False
        self._began = self._patient_since = now

    def after(self, error: APIError, now: float, *, may_have_arrived: bool = False) -> Wait | Fail:
        """Decide what follows a failure. The error of a Fail has a note about the attempts.

        ``may_have_arrived`` says that the server may have accepted the request in another form.
        """
        verdict, hint = judge(error), read_hint(error)
        error.may_have_arrived = self._may_have_arrived or may_have_arrived
        self._may_have_arrived = fate_of(error) is Fate.UNKNOWN
        delay = self._delay(verdict, hint)
        pause = delay if verdict is Verdict.COOL_DOWN else None
        self.count += 1
        self._unread += verdict is Verdict.MALFORMED
        left = self._limit(verdict, hint, error) - (now - self._since(verdict, now))
        if self._is_final(verdict) or delay > left:
            if self.count > 1:
                elapsed = now - self._began
                error.add_note(
                    f"Gave up after {self.count} attempts in {elapsed:.1f} s; this "
                    "is the last error."
                )
            return Fail(error, pause)
        return Wait(delay, error, verdict, self.count, left, pause)

    def decide_resubmission(
        self, error: APIStatusError | RequestFailedError, now: float
    ) -> Wait | Fail:
        """Decide whether an accepted sample is submitted again: its result is lost, or failed.
        Nothing else depends on it.
        """
        if not isinstance(error, RequestFailedError):
            self._lost += 1
            is_final = judge(error) is not Verdict.RESUBMIT or self._lost > retry.RESUBMISSIONS
            return Fail(error) if is_final else Wait(0.0, error, Verdict.RESUBMIT, self._lost, inf)
        delay, left = (
            self._delay(Verdict.RETRY, None),
            self.policy.total_seconds - (now - self._began),
        )
        limit = (
            retry.REPETITIONS
            if self.policy.max_retries is None
            else min(retry.REPETITIONS, self.policy.max_retries)
        )
        if error.category != "server" or self.count >= limit or delay > left or left <= 0:
            return Fail(error)
        self.count += 1
        return Wait(delay, error, Verdict.RETRY, self.count, left)

    def _delay(self, verdict: Verdict, hint: float | None) -> float:
        if verdict is Verdict.PAUSE:
            return retry.PAUSE_SECONDS
        jittered = (
            retry.longest_delay(self.policy.base_delay, self.policy.max_delay, self.count)
            * self._random()
        )
        return jittered if hint is None else hint + min(jittered, 1.0)

    def _limit(self, verdict: Verdict, hint: float | None, error: APIError) -> float:
        limit = self.policy.limit(verdict, hinted=hint is not None)
        is_wrong_address = isinstance(error, APIConnectionError) and error.wrong_address
        return min(limit, self.policy.wrong_address_seconds_total) if is_wrong_address else limit

    def _since(self, verdict: Verdict, now: float) -> float:
        """Return the start of the time limit for this verdict. A server that asks clients to wait
        is reachable.
        """
        if verdict in (Verdict.COOL_DOWN, Verdict.PAUSE):
            self._patient_since = now
            return self._began
        return self._patient_since

    def _is_final(self, verdict: Verdict) -> bool:
        if verdict is Verdict.COOL_DOWN and self.policy.fails_fast:
            return True
        return (
            verdict in (Verdict.FATAL, Verdict.RESUBMIT)
            or self.policy.total_seconds == 0
            or self._unread == retry.MAX_DECODE_ATTEMPTS
            or (self.policy.max_retries is not None and self.count > self.policy.max_retries)
        )


def read_hint(error: APIError) -> float | None:
    """Return the seconds that the server asked to wait, up to a limit."""
    requested = error.retry_after if isinstance(error, APIStatusError) else None
    return None if requested is None else min(requested, retry.MAX_HINT_SECONDS)


class Submission(msgspec.Struct):
    """One request until the server has it, or it is given up.

    ``number`` is its number, and ``numbers`` chooses another one where that is allowed. ``record``
    in :meth:`fail` is the body that was sent. The transport sets ``may_refresh`` for a request
    under the client's own token, and clears ``can_repeat`` once a part of a streamed response has
    been handed over.
    """

    operation: str
    policy: retry.Policy
    settings: retry.RetrySettings
    began: float
    random: Callable[[], float]
    fields: RefusedFields
    may_refresh: bool = False
    number: int = 0
    numbers: Numbering | None = None
    forms: FormAttempt | None = None
    can_repeat: bool = True
    _retries: Retries | None = None
    _is_refreshed: bool = False
    _may_have_arrived: bool = False  # in another form
    _tried: set[int] = set()

    def send(self) -> Variant:
        """Begin an attempt."""
        self._is_refreshed = False
        return Variant(self.number, None if self.forms is None else self.forms.next_attempt())

    def accept(self) -> None:
        """Note that the server has the request."""
        if self.forms is not None:
            self.forms.accept()
        if self.numbers is not None:
            self.numbers.accept(self.number)

    def fail(
        self, error: Exception, sent: Variant, record: msgspec.Struct | None, now: float
    ) -> NextStep:
        """Decide what follows a failure of the last step; any Exception, as it says what becomes of
        the number.
        """
        step = (
            self._repeat(error, sent, record, now) if isinstance(error, APIError) else Fail(error)
        )
        return (
            self._renumber(step, now)
            if isinstance(step, Fail) and self.numbers is not None
            else step
        )

    def _repeat(
        self, error: APIError, sent: Variant, record: msgspec.Struct | None, now: float
    ) -> NextStep:
        if not self.can_repeat:
            return Fail(error)
        if isinstance(error, APIStatusError):
            if self.may_refresh and not self._is_refreshed and is_token_expired(error):
                self._is_refreshed = True
                return Refresh(sent)
            if record is not None and is_format_refused(error) and self._learn(record, error):
                return sent
            if self.forms is not None:
                other = self.forms.next_after(error)
                self._may_have_arrived |= other is not error and fate_of(error) is Fate.UNKNOWN
                if isinstance(other, WireFormat):
                    return Variant(self.number, other)
                error = other
        if self._retries is None:
            self._retries = Retries(self.settings.limit(self.policy), self.began, self.random)
        return self._retries.after(error, now, may_have_arrived=self._may_have_arrived)

    def _learn(self, record: msgspec.Struct, refusal: APIStatusError) -> bool:
        return self.fields.learn(self.operation, record, refusal.body, refusal.status_code)

    def _renumber(self, failure: Fail, now: float) -> NextStep:
        assert self.numbers is not None
        self._tried.add(self.number)
        other = self.numbers.renumber(self.number, failure.error)
        if other is None or other in self._tried:
            return failure
        self.number, self.began, self._retries, self._may_have_arrived = other, now, None, False
        if self.forms is not None:
            self.forms = FormAttempt(self.forms.wire, self.forms.has_sparse)
        return self.send()
