"""What a check may find, and the report of a run. Plain values; knows neither HTTP nor the checks."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs


class Outcome(enum.StrEnum):
    """What was found, from best to worst.

    ``supported``: what the document says holds. ``absent``: the server lacks it, as it may. ``differs``: it is there, and
    not as the document says; clients that go by the document may stumble. ``contradiction``: an answer outside the
    document, work that is lost or done twice, a status of 500 or more, no answer in time, or something missing that no
    server may lack.
    """

    SUPPORTED = "supported"
    ABSENT = "absent"
    DIFFERS = "differs"
    CONTRADICTION = "contradiction"


_SEVERITY = list(Outcome)


def _of_operation(outcomes: Sequence[Outcome]) -> Outcome:
    """An operation of which some features are absent is there."""
    there = [outcome for outcome in outcomes if outcome is not Outcome.ABSENT]
    return max(there, key=_SEVERITY.index, default=Outcome.ABSENT)


class Finding(Exception):
    """Ends a check early; the text goes into the report."""


class Absent(Finding):
    """The server lacks what the check is about, or something that it needs."""


class Contradiction(Finding):
    """The server contradicts the document."""


class Refused(Finding):
    """A request that the document allows was refused."""

    def __init__(self, how: str, status: int) -> None:
        super().__init__(how)
        self.status = status


class Failed(Finding):
    """A submitted request failed on the server; ``category`` None where the answer has none."""

    def __init__(self, how: str, category: str | None) -> None:
        super().__init__(how)
        self.category = category


@attrs.frozen(kw_only=True)
class Row:
    """One check of a run. ``how`` says in what way it is not supported; empty where it is."""

    check: str
    operations: tuple[str, ...]
    statement: str
    outcome: Outcome
    how: tuple[str, ...] = ()
    seconds: float = 0.0


@attrs.frozen(kw_only=True)
class LeftOut:
    """A check that was not run, and why."""

    check: str
    operations: tuple[str, ...]
    statement: str
    reason: str


@attrs.frozen(kw_only=True)
class Report:
    """A run; ``contract`` is the version of the document."""

    server: str
    contract: str
    checks: tuple[Row, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def operations(self) -> dict[str, Outcome]:
        """Operation id to what its checks found: the worst, but ``absent`` only where all of them did."""
        found: dict[str, list[Outcome]] = {}
        for row in self.checks:
            for name in row.operations:
                found.setdefault(name, []).append(row.outcome)
        return {name: _of_operation(outcomes) for name, outcomes in sorted(found.items())}

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many checks came out which way."""
        return {outcome: sum(row.outcome is outcome for row in self.checks) for outcome in Outcome}

    def passed(self, *, strict: bool = False) -> bool:
        """Whether nothing contradicts the document; with ``strict`` also whether nothing differs from it."""
        bad = {Outcome.CONTRADICTION, Outcome.DIFFERS} if strict else {Outcome.CONTRADICTION}
        return not any(row.outcome in bad for row in self.checks)
