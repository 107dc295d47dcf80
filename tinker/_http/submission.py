"""Decide when a request is sent again, in which form, and when it is given up. Has no I/O."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import FieldInfo, fields, force_setattr
from tinker_wire.api import training as training_api

from tinker._basics.config import WireChoice
from tinker._basics.events import ServerFact
from tinker._http import retry
from tinker._http.retry import (
    Fate,
    Verdict,
    fate_of,
    is_about_format,
    is_format_refused,
    is_token_expired,
    is_unexplained,
    judge,
)
from tinker.errors import (
    APIConnectionError,
    APIError,
    APIStatusError,
    ConflictError,
    RequestFailedError,
    TinkerError,
)

S = TypeVar("S", bound=msgspec.Struct)
T_co = TypeVar("T_co", covariant=True)
Path: TypeAlias = tuple[str, ...]

logger: logging.Logger = logging.getLogger("tinker")

# What pydantic 2 and 1 call a field that a class does not have.
_REFUSALS = frozenset({"extra_forbidden", "value_error.extra"})


ABSENT = "absent"


class Findings:
    """The facts about one server, by subject and operation. Written on the loop, read anywhere."""

    def __init__(self) -> None:
        self._facts: dict[tuple[str, str], ServerFact] = {}

    @property
    def facts(self) -> tuple[ServerFact, ...]:
        """Return all of them, in the order in which they were first found."""
        return tuple(self._facts.copy().values())

    def note(self, subject: str, operation: str, finding: str, evidence: str) -> None:
        """Note a fact, in the place of an earlier one on the same subject."""
        self._facts[subject, operation] = ServerFact(
            operation=operation, finding=finding, evidence=evidence
        )

    def note_absence(self, operation: str, error: APIError | None) -> None:
        """Note that the server lacks an operation. If there is no error, its response had an
        unexpected type.
        """
        evidence = "unexpected response type" if error is None else _describe(error)
        self.note(ABSENT, operation, ABSENT, evidence)

    def forget_absences(self) -> None:
        """Forget the features that the server lacked: it was restarted, perhaps as
        another version.
        """
        for key in [key for key in self._facts if key[0] == ABSENT]:
            del self._facts[key]

    def lacks(self, operation: str) -> bool:
        """Return whether the server is known to lack an operation."""
        return (ABSENT, operation) in self._facts


class RefusedFields:
    """The fields that one server refuses, by operation."""

    def __init__(self, findings: Findings | None = None) -> None:
        self._findings = findings
        self.paths: dict[str, set[Path]] = {}

    def learn(
        self, operation: str, body: msgspec.Struct, refusal: object, status: int = 422
    ) -> bool:
        """Return whether a refusal only concerns fields of ``body`` with their default value, and
        omit these from now on.

        ``refusal`` is the body of the response, parsed or not.
        """
        paths = _find_refused(refusal)
        if not paths or not all(_is_default(body, path) for path in paths):
            return False
        logger.debug(
            "%s: the server refuses %s; omitted from later requests",
            operation,
            ", ".join(map(".".join, paths)),
        )
        known = self.paths.setdefault(operation, set())
        known.update(paths)
        if self._findings is not None:
            self._findings.note(
                "fields",
                operation,
                f"{', '.join(sorted(map('.'.join, known)))} left out",
                str(status),
            )
        return True

    def without(self, operation: str, body: S) -> S:
        """Return the body without refused fields that have their default value; the same body if it
        has no such fields.
        """
        for path in self.paths.get(operation, ()):
            if _is_default(body, path):
                body = _leave_out(body, path)
        return body


def _describe(error: APIError) -> str:
    """Describe a failure in one word or number."""
    return str(error.status_code) if isinstance(error, APIStatusError) else type(error).__name__


def _find_refused(refusal: object) -> list[Path]:
    """Return the fields that a refusal names; none if the refusal has other reasons or another
    format.
    """
    try:
        if isinstance(refusal, bytes):
            read = msgspec.json.decode(refusal, type=_FieldRefusal)
        else:
            read = msgspec.convert(refusal, _FieldRefusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    paths = [_path(fault.loc) for fault in read.detail if fault.type in _REFUSALS]
    known = [path for path in paths if path]
    return known if len(known) == len(read.detail) else []


class _FieldFault(msgspec.Struct):
    type: str
    loc: list[str | int]


class _FieldRefusal(msgspec.Struct):
    detail: list[_FieldFault]


def _path(loc: Sequence[str | int]) -> Path:
    """Return the path of a field, from the outermost name, without the part for the body; empty for
    an item of a list.
    """
    names = loc[1:] if loc and loc[0] == "body" else loc
    return (
        tuple(cast("Sequence[str]", names)) if all(isinstance(name, str) for name in names) else ()
    )


def _is_default(record: Any, path: Path) -> bool:
    """Return whether a field is present with its default value."""
    *outer, last = path
    for name in outer:
        record = getattr(record, name, None)
    if not isinstance(record, msgspec.Struct):
        return False
    field = next((field for field in fields(record) if field.encode_name == last), None)
    return (
        field is not None
        and not field.required
        and bool(getattr(record, field.name) == _default(field))
    )


def _default(field: FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _leave_out(record: S, path: Path) -> S:
    name, *inner = path
    changed = copy.copy(record)
    force_setattr(
        changed, name, _leave_out(getattr(record, name), tuple(inner)) if inner else UNSET
    )
    return changed


Media: TypeAlias = Literal["proto", "json"]

# A server that fails on protobuf and takes the same request as JSON may have failed by chance once,
# not so often.
SETTLING_FAILURES = 2
# How often a request whose protobuf form fails without a reason is tried as JSON as well.
ROUNDS = 3
# Failures that say nothing about a form.
_PASSING = frozenset({Verdict.RETRY, Verdict.COOL_DOWN, Verdict.PAUSE})
_SUBMISSION = training_api.forward_backward.__name__


class WireFormat(msgspec.Struct, frozen=True):
    """How one request is written. ``sparse`` says that sparse tensors may stay so."""

    media: Media
    sparse: bool = True

    def __str__(self) -> str:
        return f"As {self.media}, sparse tensors {'kept' if self.sparse else 'made dense'}"


class Negotiation:
    """The form in use. An explicit choice of protobuf or JSON is never changed.

    Otherwise a server that answers the client configuration gets protobuf (servers of both are of
    the same age), one that does not gets JSON. A refused request may be repeated in another form,
    until the first success settles it; so may one on whose protobuf form the server fails, which
    settles it when it happens again. Sparse tensors may turn out to be unread later too.
    ``findings`` hears of what was settled, and why.
    """

    def __init__(self, choice: WireChoice, findings: Findings) -> None:
        #: Whether the server is known to read protobuf, or JSON; or one was chosen.
        self.is_settled: bool = choice != "auto"
        self.failures: int = 0  # of the server on protobuf, of requests that it then took as JSON
        self._findings = findings
        self.form: WireFormat = WireFormat("json" if choice == "json" else "proto")

    def note_config_answered(self, answered: bool) -> None:
        """Note that the server did or did not answer the client configuration."""
        if not self.is_settled:
            self.form = WireFormat("proto" if answered else "json")

    def settle(
        self, form: WireFormat, *, sparse_seen: bool, refusal: APIStatusError | None = None
    ) -> None:
        """Note that the server accepted a request of this form; after some sparse tensors, also
        that it reads those.

        ``refusal`` is its response to the form before, if there was one.
        """
        known = self.is_settled
        self.is_settled = True
        self.form = (
            form if sparse_seen or not form.sparse else WireFormat(form.media, self.form.sparse)
        )
        if refusal is not None or not known:
            self._note(self.form, refusal)

    def note_accepted_after_failure(
        self,
        form: WireFormat,
        failures_before: int,
        *,
        sparse_seen: bool,
        failure: APIStatusError,
    ) -> None:
        """Note that the server took this form after it failed on protobuf, as on
        ``failures_before`` earlier requests.
        """
        self.failures = max(self.failures, failures_before + 1)
        if self.failures >= SETTLING_FAILURES:
            self.settle(form, sparse_seen=sparse_seen, refusal=failure)
        else:
            self._note(form, failure)

    def _note(self, form: WireFormat, refusal: APIStatusError | None) -> None:
        why = "accepted" if refusal is None else f"{refusal.status_code} to another form"
        self._findings.note("form", _SUBMISSION, str(form).lower(), why)

    def alternatives(
        self, error: APIStatusError, form: WireFormat, *, has_sparse: bool
    ) -> Iterator[WireFormat]:
        """Return other forms in which a refused request may be read, the likeliest first."""
        densifies = has_sparse and form.sparse
        if densifies and is_format_refused(error):
            yield WireFormat(form.media, sparse=False)
        if not self.is_settled and _may_be_unread(error, form):
            other: Media = "json" if form.media == "proto" else "proto"
            yield WireFormat(other, form.sparse)
            if densifies:
                yield WireFormat(other, sparse=False)


def _may_be_unread(error: APIStatusError, form: WireFormat) -> bool:
    """Return whether the server may not read the form. Frameworks that expect JSON may fail on
    protobuf, or refuse it.
    """
    if form.media == "json":
        return is_format_refused(error)
    return is_unexplained(error) or judge(error) is Verdict.FATAL


class FormAttempt(msgspec.Struct):
    """The forms of one request: each attempt begins with the form in use, and continues with others
    that may be accepted.
    """

    wire: Negotiation
    has_sparse: bool
    form: WireFormat = WireFormat("proto")  # the last one; at first that in use
    _failures_before: int = 0
    _rounds: int = 0
    _refusals: list[tuple[WireFormat, APIStatusError]] = []
    _others: Iterator[WireFormat] = iter(())
    _is_unanswered: bool = False

    def __post_init__(self) -> None:
        self.form, self._failures_before = self.wire.form, self.wire.failures

    def next_attempt(self) -> WireFormat:
        """Return the form that another attempt begins with: the one in use, or one that the last
        attempt broke off in.

        Frameworks that fail close the connection after their answer, so the next request may get
        none.
        """
        if self._is_unanswered and not self.wire.is_settled:
            return self.form
        self.form, self._failures_before = self.wire.form, self.wire.failures
        self._refusals = []
        return self.form

    def next_after(self, error: APIStatusError) -> WireFormat | APIStatusError:
        """Return another form for the same attempt; without one, the most specific refusal, with
        the others as notes.

        Where one form was refused, and the server has no time for the next one, the attempt ends
        with that.
        """
        if self._refusals and not is_unexplained(self._refusals[0][1]) and judge(error) in _PASSING:
            return error
        self._is_unanswered = False
        if not self._refusals:
            if self._rounds == ROUNDS:
                return error
            self._others = self.wire.alternatives(error, self.form, has_sparse=self.has_sparse)
        self._refusals.append((self.form, error.with_traceback(None)))
        other = next(self._others, None)
        if other is None:
            self._rounds += is_unexplained(self._refusals[0][1])
            refusals, self._refusals = self._refusals, []  # their tracebacks hold this attempt
            return self._most_specific_error(refusals)
        self.form = other
        self._is_unanswered = True
        return other

    def accept(self) -> None:
        """Note that the server accepted the last form."""
        refusal = self._refusals[0][1] if self._refusals else None
        if refusal is not None and is_unexplained(refusal):
            self.wire.note_accepted_after_failure(
                self.form, self._failures_before, sparse_seen=self.has_sparse, failure=refusal
            )
        else:
            self.wire.settle(self.form, sparse_seen=self.has_sparse, refusal=refusal)

    def _most_specific_error(
        self, refusals: list[tuple[WireFormat, APIStatusError]]
    ) -> APIStatusError:
        """Return the most specific refusal. One without a reason is believed first: the other forms
        may really be unread.
        """
        first = refusals[0][1]
        chosen = first
        if not is_unexplained(first) or self._rounds == ROUNDS:
            chosen = max((error for _, error in refusals), key=_specificity)
        for form, error in refusals:
            # A form whose response says the same, or whose number the first refusal used up, adds
            # nothing.
            if (
                error is not chosen
                and error.body != chosen.body
                and not isinstance(error, ConflictError)
            ):
                chosen.add_note(f"{form}: {error}")
        return chosen


def _specificity(error: APIStatusError) -> int:
    """Rate how specific a refusal is: 0 nothing, 1 that the body is not understood, 2 what is wrong
    with it.
    """
    if is_about_format(error):
        return 0
    try:
        faults = msgspec.convert(error.body, _BodyRefusal).detail
    except msgspec.ValidationError:
        return 2 if isinstance(error.body, dict) else 0
    return 2 if any(isinstance(part, str) for fault in faults for part in fault.loc[1:]) else 1


class _BodyFault(msgspec.Struct):
    loc: list[str | int]


class _BodyRefusal(msgspec.Struct):
    """The faults that a pydantic server finds in a body: in the whole of it, or in a field."""

    detail: list[_BodyFault]


class Next(msgspec.Struct, frozen=True):
    """What follows an attempt without a result, or a failure: another attempt, at once."""


class Variant(Next, frozen=True):
    """Send the request, under this number and in this form if it has any."""

    number: int = 0
    form: WireFormat | None = None


class Refresh(Next, frozen=True):
    """Get another token, and send the same."""

    then: Variant


class Pause(Next, frozen=True):
    """Wait before the next attempt, although nothing has failed."""

    seconds: float


class Wait(Next, frozen=True):
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


class Fail(Next, frozen=True):
    """Give the request up. ``pause_seconds`` as of :class:`Wait`."""

    error: Exception
    pause_seconds: float | None = None


class Attempts(Protocol[T_co]):
    """Something that is attempted until there is a result, or it is given up."""

    @property
    def operation(self) -> str:
        """Return what it is called in the log."""
        ...

    async def attempt(self, step: Next) -> T_co | Next:
        """Carry out a step, whose pause is over; return the result, or the next step."""
        ...

    async def fail(self, error: Exception) -> Next:
        """Decide what follows a failure of the last step, or of the wait for it."""
        ...


class Numbering(Protocol):
    """The sequence numbers of the requests that a server runs in order."""

    @property
    def next(self) -> int:
        """Return the number of the next request."""
        ...

    def take(self, count: int = 1) -> int:
        """Return the first of the next ``count`` numbers, which are used now."""
        ...

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
                error.add_note(
                    f"Gave up after {self.count} attempts in {now - self._began:.1f} s; this "
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
    ) -> Next:
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
    ) -> Next:
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

    def _renumber(self, failure: Fail, now: float) -> Next:
        assert self.numbers is not None
        self._tried.add(self.number)
        other = self.numbers.renumber(self.number, failure.error)
        if other is None or other in self._tried:
            return failure
        self.number, self.began, self._retries, self._may_have_arrived = other, now, None, False
        if self.forms is not None:
            self.forms = FormAttempt(self.forms.wire, self.forms.has_sparse)
        return self.send()
