"""Which form training requests take on one server: protobuf or JSON, with sparse tensors or without.

Results are told apart by their media type.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, Literal, TypeAlias, TypeVar

import attrs
import msgspec

from tinker._config import WireChoice
from tinker._http import UNEXPECTED_STATUS, UNREADABLE_STATUSES, UNSUPPORTED_MEDIA_STATUS, Verdict, judge
from tinker.errors import APIStatusError

T = TypeVar("T")
Media: TypeAlias = Literal["proto", "json"]

# A server that fails on protobuf and takes the same request as JSON may have failed by chance once, not so often.
SETTLING_FAILURES = 2
# How often a request whose protobuf form fails without a reason is tried as JSON as well.
ROUNDS = 3


@attrs.frozen
class Form:
    """How one request is written. ``sparse`` says that sparse tensors may stay so."""

    media: Media
    sparse: bool = True

    def __str__(self) -> str:
        return f"As {self.media}, sparse tensors {'kept' if self.sparse else 'made dense'}"


class Negotiation:
    """The form in use. An explicit choice of protobuf or JSON is never changed.

    Otherwise a server that answers the client configuration gets protobuf (servers of both are of the same age), one that
    does not gets JSON. A refused request may be repeated in another form, until the first success settles it; so may one on
    whose protobuf form the server fails, which settles it when it happens again. Sparse tensors may turn out to be unread
    later too.
    """

    def __init__(self, choice: WireChoice) -> None:
        self._settled = choice != "auto"
        self._failures = 0
        self.form = Form("json" if choice == "json" else "proto")

    @property
    def is_settled(self) -> bool:
        """Whether the server is known to read protobuf, or JSON; or one was chosen."""
        return self._settled

    @property
    def failures(self) -> int:
        """How often the server failed on protobuf and then took the same request as JSON."""
        return self._failures

    def config_answered(self, answered: bool) -> None:
        """The server did or did not answer the client configuration."""
        if not self._settled:
            self.form = Form("proto" if answered else "json")

    def settle(self, form: Form, *, sparse_seen: bool) -> None:
        """The server accepted a request of this form; whether it reads sparse tensors is known once it saw some."""
        self._settled = True
        self.form = form if sparse_seen or not form.sparse else Form(form.media, self.form.sparse)

    def accepted_after_failure(self, form: Form, before: int, *, sparse_seen: bool) -> None:
        """The server took this form after it failed on protobuf; there had been ``before`` such failures."""
        self._failures = max(self._failures, before + 1)
        if self._failures >= SETTLING_FAILURES:
            self.settle(form, sparse_seen=sparse_seen)

    def alternatives(self, error: APIStatusError, form: Form, *, has_sparse: bool) -> Iterator[Form]:
        """Other forms in which a refused request may be read, the likeliest first."""
        densifies = has_sparse and form.sparse
        if densifies and error.status_code in UNREADABLE_STATUSES:
            yield Form(form.media, sparse=False)
        if not self._settled and _may_be_unread(error, form):
            other: Media = "json" if form.media == "proto" else "proto"
            yield Form(other, form.sparse)
            if densifies:
                yield Form(other, sparse=False)


def _may_be_unread(error: APIStatusError, form: Form) -> bool:
    """Whether the server may not read the form. Frameworks that expect JSON may fail on protobuf, or refuse it in any way."""
    if form.media == "json":
        return error.status_code in UNREADABLE_STATUSES
    return error.status_code == UNEXPECTED_STATUS or judge(error) in (Verdict.FATAL, Verdict.REPEAT)


class Trial(Generic[T]):
    """The submission of one request: each try is made in the form in use, and where that may not be read in others."""

    def __init__(self, wire: Negotiation, post: Callable[[Form], Awaitable[T]], *, has_sparse: bool) -> None:
        self._wire, self._post, self._has_sparse = wire, post, has_sparse
        self._rounds = 0

    async def once(self) -> T:
        """What ``post`` gives for a form that is accepted; raises the refusal that says most, the others as notes."""
        form, failures = self._wire.form, self._wire.failures
        try:
            value = await self._post(form)
        except APIStatusError as error:
            value, form = await self._otherwise(error, form)
            if _is_unexplained(error):
                self._wire.accepted_after_failure(form, failures, sparse_seen=self._has_sparse)
                return value
        self._wire.settle(form, sparse_seen=self._has_sparse)
        return value

    async def _otherwise(self, error: APIStatusError, form: Form) -> tuple[T, Form]:
        refusals = [(form, error)]
        if self._rounds == ROUNDS:
            raise error
        for other in self._wire.alternatives(error, form, has_sparse=self._has_sparse):
            try:
                return await self._post(other), other
            except APIStatusError as refusal:
                refusals.append((other, refusal))
        self._rounds += _is_unexplained(error)
        raise self._most_telling(refusals)

    def _most_telling(self, refusals: list[tuple[Form, APIStatusError]]) -> APIStatusError:
        """The refusal that says most. One without a reason is believed at first: the other forms may really be unread."""
        first = refusals[0]
        told = first if _is_unexplained(first[1]) and self._rounds < ROUNDS else max(refusals, key=lambda one: _tells(one[1]))
        for form, error in refusals:
            if error is not told[1]:
                told[1].add_note(f"{form}: {error}")
        return told[1]


def _is_unexplained(error: APIStatusError) -> bool:
    """Whether the failure would be tried again without a second thought."""
    return error.status_code == UNEXPECTED_STATUS or judge(error) is Verdict.REPEAT


def _tells(error: APIStatusError) -> int:
    """How much a refusal says about the request: 0 nothing, 1 that its body is not understood, 2 what is wrong with it."""
    if error.status_code >= UNEXPECTED_STATUS or error.status_code == UNSUPPORTED_MEDIA_STATUS:
        return 0
    try:
        faults = msgspec.convert(error.body, _Refusal).detail
    except msgspec.ValidationError:
        return 2 if isinstance(error.body, dict) else 0
    return 2 if any(isinstance(part, str) for fault in faults for part in fault.loc[1:]) else 1


class _Fault(msgspec.Struct):
    loc: list[str | int]


class _Refusal(msgspec.Struct):
    """The faults that a pydantic server finds in a body: in the whole of it, or in a field."""

    detail: list[_Fault]
