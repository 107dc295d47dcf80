"""The request forms that a server reads: protobuf or JSON for training requests, with sparse
tensors or without.

The media type of a result says which form it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
from tinker_wire.api import training as training_api

from tinker._config import WireChoice
from tinker._http.findings import Findings
from tinker._http.statuses import Verdict, is_about_format, is_format_refused, is_unexplained, judge
from tinker.errors import APIStatusError, ConflictError

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
        self, form: WireFormat, before: int, *, sparse_seen: bool, failure: APIStatusError
    ) -> None:
        """Note that the server took this form after it failed on protobuf; there had been
        ``before`` such failures.
        """
        self.failures = max(self.failures, before + 1)
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
