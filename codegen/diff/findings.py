"""The findings of a comparison: each change's meaning, and the clients and servers that it breaks.

Owns: the levels, the table that turns "wider" and "narrower" into a level by where a value travels,
and `DiffFindings`, which makes one finding of a change that was met in several places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

#: A client that follows the old document can fail with a server that follows the new one.
CLIENTS = "clients"
#: A server that follows the old document can fail a client that follows the new one.
SERVERS = "servers"
#: Python code written for the old bindings does not run, or does not pass a type checker, with the
#: new ones.
PYTHON = "python"
COMPATIBLE = "compatible"
LEVELS = (CLIENTS, SERVERS, PYTHON)

#: Where a value travels.
SENT, RECEIVED = "requests", "answers"

#: Whom it breaks that more values than before may be there, or fewer.
WIDER = {SENT: SERVERS, RECEIVED: CLIENTS}
NARROWER = {SENT: CLIENTS, RECEIVED: SERVERS}


@dataclass(frozen=True)
class Change:
    """One difference as it was met in one place.

    `wider` and `narrower` say which values are allowed now that were not, and the other way round;
    `breaks` is complete without them.
    """

    rule: str
    pointer: str
    what: str
    breaks: frozenset[str] = frozenset()
    wider: bool = False
    narrower: bool = False


@dataclass(frozen=True)
class DiffFinding:
    """One difference between two contracts: a rule, a place, a sentence, and its breaks (none:
    compatible).
    """

    rule: str
    pointer: str
    what: str
    breaks: tuple[str, ...]
    uses: tuple[str, ...] = ()

    @property
    def level(self) -> str:
        """Return the levels as one word or several, `compatible` where nothing breaks."""
        return ", ".join(self.breaks) or COMPATIBLE

    @property
    def sentence(self) -> str:
        """Return what changed, and where such values travel."""
        return f"{self.what} ({' and '.join(self.uses)})." if self.uses else f"{self.what}."

    def __str__(self) -> str:
        return f"{self.level:<24} {self.pointer}: {self.sentence}"


@dataclass
class DiffFindings:
    """Collects changes; the same change by several ways is one finding with all that it breaks."""

    _met: dict[tuple[str, str, str], tuple[set[str], set[str]]] = field(
        default_factory=dict[tuple[str, str, str], tuple[set[str], set[str]]]
    )

    def add(self, changes: Iterable[Change], use: str | None = None) -> None:
        """Add the changes of values that travel in requests, in answers, or where that means
        nothing.
        """
        for change in changes:
            breaks, uses = self._met.setdefault(
                (change.rule, change.pointer, change.what), (set(), set())
            )
            breaks |= change.breaks
            uses |= {use} if use else set()

    def __iter__(self) -> Iterator[DiffFinding]:
        """Iterate over the findings, breaking ones first."""
        found = [
            DiffFinding(
                *key,
                breaks=tuple(level for level in LEVELS if level in breaks),
                uses=tuple(sorted(uses, reverse=True)),
            )
            for key, (breaks, uses) in self._met.items()
        ]
        return iter(sorted(found, key=rank))


def rank(finding: DiffFinding) -> tuple[object, ...]:
    """Return the place of a finding: what breaks peers, then what breaks code, then the rest; then
    the pointer.
    """
    levels = [LEVELS.index(level) for level in finding.breaks] or [len(LEVELS)]
    return (min(levels), -len(levels), finding.pointer, finding.rule, finding.what)


def difference(
    rule: str,
    pointer: str,
    what: str,
    use: str,
    *,
    wider: bool = False,
    narrower: bool = False,
    typed: bool = False,
) -> Change:
    """Make the change of a set of values; `typed` says that the Python type of the value changes
    with it.
    """
    breaks = ({WIDER[use]} if wider else set[str]()) | ({NARROWER[use]} if narrower else set[str]())
    if typed and CLIENTS in breaks:
        breaks |= {PYTHON}
    return Change(rule, pointer, what, frozenset(breaks), wider, narrower)


def breaking(rule: str, pointer: str, what: str, *levels: str) -> Change:
    """Make a change whose levels do not follow from where a value travels; without a level it is
    compatible.
    """
    return Change(rule, pointer, what, frozenset(levels))
