"""What a check may find, and the report of a run. Plain values; knows neither HTTP
nor the checks.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import attrs


class Outcome(enum.StrEnum):
    """What was found, from best to worst.

    ``supported``: what the document says holds. ``absent``: the server lacks it, as it may.
    ``blocked``: it could not be tried, because what it needs is found to fail in another check.
    ``differs``: it is there, and not as the document says; clients that go by the document may
    stumble. ``contradiction``: a response outside the document, work that is lost or done twice, a
    status of 500 or more, no response in time, or something missing that no server may lack.
    """

    SUPPORTED = "supported"
    ABSENT = "absent"
    BLOCKED = "blocked"
    DIFFERS = "differs"
    CONTRADICTION = "contradiction"


SEVERITY = tuple(Outcome)
#: What is not as the document says.
FOUND = (Outcome.DIFFERS, Outcome.CONTRADICTION)


def _of_operation(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the worst outcome. An operation is there if only some of its features are absent or
    were not tried.
    """
    there = [outcome for outcome in outcomes if outcome not in (Outcome.ABSENT, Outcome.BLOCKED)]
    return max(there or outcomes, key=SEVERITY.index)


@attrs.frozen
class Observation:
    """One thing that is not as the document says.

    ``cause``: equal for what one change of the server would repair. ``operation``: its id in the
    document, empty where it is of no one operation. ``schema``: the record that a response does not
    fit.
    """

    text: str
    cause: str = ""
    outcome: Outcome = Outcome.DIFFERS
    operation: str = ""
    schema: str = ""


class CheckEnd(Exception):
    """Ends a check early; the text goes into the report. ``cause``, ``operation`` and ``schema`` as
    in Observation.
    """

    outcome = Outcome.DIFFERS

    def __init__(self, how: str, cause: str = "", operation: str = "", schema: str = "") -> None:
        super().__init__(how)
        self.cause: str = cause
        self.operation: str = operation
        self.schema: str = schema

    def observation(self, *, is_core: bool = False) -> Observation:
        """Return what is reported. No server may lack what a check with ``is_core`` is about."""
        must_be_there = is_core and isinstance(self, Absent | Refused | Failed)
        outcome = Outcome.CONTRADICTION if must_be_there else self.outcome
        return Observation(str(self), self.cause, outcome, self.operation, self.schema)


class Absent(CheckEnd):
    """The server lacks what the check is about, or something that it needs."""

    outcome = Outcome.ABSENT


class Blocked(CheckEnd):
    """The check stays open: what it needs fails in the check ``by``, or the server is full
    (LIMITS), or the kit fails (KIT).
    """

    outcome = Outcome.BLOCKED

    def __init__(self, how: str, by: str) -> None:
        super().__init__(how)
        self.by = by


LIMITS = "the limits of the server"
KIT = "a failure of the kit"


class Differs(CheckEnd):
    """Something is there, and not as the document says, so that the rest of the check means
    nothing.
    """


class Contradiction(CheckEnd):
    """The server contradicts the document."""

    outcome = Outcome.CONTRADICTION


class Crash(Contradiction):
    """The server answered a request with a status of 500 or more."""


class Broken(Contradiction):
    """The connection was closed before the response was there."""


class Late(Contradiction):
    """There was no response in time."""


class Refused(CheckEnd):
    """A request that the document allows was refused."""

    def __init__(self, how: str, status: int, *, operation: str = "") -> None:
        cause = "unknown fields" if _UNKNOWN_FIELD in how else f"refused: {normalize(how)}"
        super().__init__(how, cause=cause, operation=operation)
        self.status = status


class Failed(CheckEnd):
    """A submitted request failed on the server; ``category`` None where the response has none."""

    def __init__(self, how: str, category: str | None, *, operation: str = "") -> None:
        super().__init__(
            how,
            cause=f"failed: {normalize(how.partition(' fails: ')[2] or how)}",
            operation=operation,
        )
        self.category = category


def judge(end: CheckEnd | None, observations: Sequence[Observation]) -> Outcome:
    """Return the outcome of a check: that of its end, unless something worse was
    observed before.
    """
    seen = max((one.outcome for one in observations), key=SEVERITY.index, default=Outcome.SUPPORTED)
    if isinstance(end, Blocked) and seen is not Outcome.CONTRADICTION:
        return Outcome.BLOCKED
    return (
        observations[0].outcome if end is not None and seen is not Outcome.CONTRADICTION else seen
    )


@contextmanager
def optional(*ends: type[CheckEnd], about: str = "") -> Generator[None]:
    """Report a feature as absent if its request is refused or fails (``ends``, by default both).
    ``about`` is put first.
    """
    kinds = ends or (Refused, Failed)
    try:
        yield
    except kinds as error:
        raise Absent(f"{about}: {error}" if about else str(error)) from error


_UNKNOWN_FIELD = "extra_forbidden"
_ACCIDENTAL = re.compile(r"conformance-[0-9a-f]+|[0-9a-f]{8}[0-9a-f-]*|[\d.]+")


def normalize(text: str) -> str:
    """Return the text without ids, numbers and times, which are other ones in each check."""
    return _ACCIDENTAL.sub("#", text)


@attrs.frozen(kw_only=True)
class Row:
    """One check of a run. ``how`` says in what way it is not supported; empty where it is.

    ``blocked_by`` is the check that fails and on which this one rests (or LIMITS or KIT), None
    where it was tried.
    """

    check: str
    operations: tuple[str, ...]
    statement: str
    outcome: Outcome
    observations: tuple[Observation, ...] = ()
    blocked_by: str | None = None
    seconds: float = 0.0

    @property
    def how(self) -> tuple[str, ...]:
        """Return the texts of what was observed."""
        return tuple(one.text for one in self.observations)


@attrs.frozen(kw_only=True)
class LeftOut:
    """A check that was not run, and why."""

    check: str
    operations: tuple[str, ...]
    statement: str
    reason: str


@attrs.frozen(kw_only=True)
class Report:
    """A run; ``contract`` is the version of the document, ``label`` what the server calls itself,
    for people.
    """

    server: str
    contract: str
    checks: tuple[Row, ...]
    left_out: tuple[LeftOut, ...] = ()
    label: str = ""

    @property
    def operations(self) -> dict[str, Outcome]:
        """Return the worst outcome by operation id, of what it did itself where that is known.

        ``absent`` or ``blocked`` only if all checks of the operation were.
        """
        found: dict[str, list[Outcome]] = {}
        for row in self.checks:
            named = {one.operation for one in row.observations}
            for name in row.operations:
                found.setdefault(name, []).append(row.outcome if named <= {""} else Outcome.BLOCKED)
            for one in row.observations:
                for name in [one.operation] if one.operation else row.operations:
                    found.setdefault(name, []).append(one.outcome)
        return {name: _of_operation(outcomes) for name, outcomes in sorted(found.items())}

    @property
    def counts(self) -> dict[Outcome, int]:
        """Return how many checks came out which way."""
        return {outcome: sum(row.outcome is outcome for row in self.checks) for outcome in Outcome}

    @property
    def was_cut_short(self) -> bool:
        """Return whether something could not be tried although nothing that it needs is known to
        fail: the server was full, the kit failed, or the run was interrupted.
        """
        is_blocked = any(row.blocked_by in (LIMITS, KIT) for row in self.checks)
        return is_blocked or any(one.reason == "interrupted" for one in self.left_out)

    def passed(self, *, strict: bool = False) -> bool:
        """Return whether nothing contradicts the document; with ``strict`` also whether nothing
        differs from it.
        """
        bad = FOUND if strict else (Outcome.CONTRADICTION,)
        return not any(row.outcome in bad for row in self.checks)
