"""From rows to findings: one cause is one finding, with the rows that show it and those that it blocks."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tinker.testing.conformance.causes import KNOWN, group_of
from tinker.testing.conformance.evidence import RecordedExchange, exchanges_of, place_of_operation, place_of_schema
from tinker.testing.conformance.outcome import SEVERITY, Observation, Outcome, Report, Row, normalize

_FOUND = (Outcome.DIFFERS, Outcome.CONTRADICTION)
_MOST_EXCHANGES = 3
_LONGEST_TITLE = 120


@attrs.frozen(kw_only=True)
class Finding:
    """One cause. ``observed`` is what was seen, ``checks`` names the rows that show it, ``blocked`` those it blocks."""

    title: str
    advice: str
    outcome: Outcome
    observed: tuple[str, ...]
    checks: tuple[str, ...]
    blocked: tuple[str, ...]
    operations: tuple[str, ...]
    places: tuple[str, ...]
    exchanges: dict[str, RecordedExchange]


def findings(report: Report) -> tuple[Finding, ...]:
    """Return what is not as the document says, one for each cause; contradictions first, then what explains most rows."""
    groups: dict[str, list[tuple[Row, Observation]]] = {}
    blockers = {row.blocked_by for row in report.checks}
    blocking = frozenset(row.observations[0].cause for row in report.checks if row.check in blockers and row.observations)
    for row in report.checks:
        for one in row.observations:
            if one.outcome in _FOUND and (one.cause or row.outcome is not Outcome.ABSENT):
                groups.setdefault(group_of(one, row.check, blocking), []).append((row, one))
    found = [_finding(cause, seen, report) for cause, seen in groups.items()]
    return tuple(sorted(found, key=_rank))


def _rank(finding: Finding) -> tuple[int, int]:
    return -SEVERITY.index(finding.outcome), -len(finding.checks) - len(finding.blocked)


def _finding(cause: str, seen: list[tuple[Row, Observation]], report: Report) -> Finding:
    first, observation = seen[0]
    checks = tuple(dict.fromkeys(row.check for row, _ in seen))
    ended = {row.check for row, one in seen if one is row.observations[0]}
    named = tuple(dict.fromkeys(one.operation for _, one in seen if one.operation)) or first.operations
    causes = {one.cause for _, one in seen}
    own = (_title(observation, first), _advice(observation, first))
    title, advice = KNOWN.get(observation.cause, own) if len(causes) == 1 else KNOWN[cause]
    return Finding(
        title=title,
        advice=advice,
        outcome=max((one.outcome for _, one in seen), key=SEVERITY.index),
        observed=_distinct(one.text for _, one in seen),
        checks=checks,
        blocked=tuple(row.check for row in report.checks if row.blocked_by in ended),
        operations=named,
        places=tuple(_places(named, (one.schema for _, one in seen))),
        exchanges={name: one for operation in named[:_MOST_EXCHANGES] for name, one in exchanges_of(operation).items()},
    )


def _title(observation: Observation, row: Row) -> str:
    """Return what was seen, where it is a cause of its own; else what does not hold."""
    kind, _, rest = observation.cause.partition(": ")
    if kind == "misfit":
        return f"A response of `{observation.operation}` does not fit its record: {rest}"
    texts = {one.text for one in row.observations if one.outcome in _FOUND and not one.cause}
    if observation.cause:
        return observation.text
    if len(texts) == 1 and (shown := _shorten(observation.text)):
        return shown[:1].upper() + shown[1:]
    return f"Does not hold: {row.statement}"


def _shorten(text: str) -> str:
    """Return the text as a title: whole, or what stands before its first colon; nothing where that is too long, too."""
    return next((one for one in (text, text.partition(": ")[0]) if len(one) <= _LONGEST_TITLE), "")


def _advice(observation: Observation, row: Row) -> str:
    operation = observation.operation
    if observation.cause.startswith("refused: "):
        return f"Clients send what the kit sends: take it, or answer 404 or 501 where there is no `{operation}`."
    if observation.cause.startswith("failed: "):
        return f"`{operation}` was accepted and its result is an error. What must hold: {row.statement}"
    if observation.cause.startswith("misfit: "):
        return f"Answer a `{observation.schema}` as the document describes it; clients refuse or misread anything else."
    if observation.cause.startswith("broken: "):
        return "Answer before the connection is closed; the server's log may say what failed."
    if observation.cause.startswith("crash: "):
        return "Find the exception in the server's log; clients repeat such a request for minutes before they give up."
    return f"What must hold: {row.statement}"


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Return each text once, where ids and numbers do not count."""
    return tuple({normalize(text): text for text in reversed(list(texts))}.values())[::-1]


def _places(operations: Iterable[str], schemas: Iterable[str]) -> Iterable[str]:
    yield from (place_of_operation(name) for name in operations)
    for name in dict.fromkeys(schemas):
        place = place_of_schema(name)
        if place is not None:
            yield place
