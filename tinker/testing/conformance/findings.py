"""From rows to findings: one cause is one finding, with the rows that show it and those that it blocks."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tinker.testing.conformance.evidence import (
    Place,
    RecordedExchange,
    exchanges_of,
    place_of_operation,
    place_of_schema,
)
from tinker.testing.conformance.outcome import SEVERITY, Observation, Outcome, Report, Row, normalize

_FOUND = (Outcome.DIFFERS, Outcome.CONTRADICTION)

#: Causes that many checks meet: what is wrong, and what its author can do.
KNOWN: dict[str, tuple[str, str]] = {
    "statuses": (
        "Statuses are others than the document's.",
        "Clients take any 2xx for a success; by the status of a refusal they decide what is raised and what is repeated.",
    ),
    "unknown ids": (
        "Ids that were never given out are not refused with 404.",
        "Look the id up first and answer 404 with a detail; clients repeat a request after 500 for minutes.",
    ),
    "numbers of training": (
        "The numbers of training requests (`seq_id`) do not mean what the document says.",
        "Hold a request until those of the model with lower numbers are there, count failed ones, refuse a number that another"
        " request used with 409 at once: clients send requests of one model at the same time and repeat them.",
    ),
    "repetition": (
        "Requests that are sent again are done again.",
        "Clients repeat a request whose answer was lost, under the same number; answer the `request_id` of the first one.",
    ),
    "already so": (
        "What is already so is done again, where 409 is due.",
        "Refuse a name that exists unless `overwrite` is true, and to publish what is public; programs rely on it.",
    ),
    "body of refusal": (
        'Refusals have no JSON body with "detail".',
        'Answer every status of 400 and above with {"detail": ...}, as application/json; clients show it to their users.',
    ),
    "crash for refusal": (
        "What must be refused ends in an unhandled error.",
        "Clients repeat a request after 500 for minutes. Refuse it with the status that the document lists.",
    ),
    "failure as status": (
        "A request that failed is told by the status of its poll.",
        'Answer 200 with {"error": ..., "category": "user" | "server"}; clients take other statuses for failures of the poll.',
    ),
    "time without a zone": (
        "Times have no zone.",
        "Write times as RFC 3339 does, with Z or an offset; without one clients cannot compare them.",
    ),
    "name of the loss": (
        "The loss of a batch is not the metric `loss:sum`.",
        "Answer the sum over all data as `loss:sum` in `metrics`; clients add it up over the parts of a batch.",
    ),
    "unknown fields": (
        "Fields that the server does not know are refused.",
        "Ignore unknown fields: the document says so, so that newer clients can speak to older servers.",
    ),
    "missing operation": (
        "Operations that no server may lack are not at the document's address.",
        "Clients call these without asking first. Serve them under the path and the method of the document.",
    ),
    "late": (
        "There is no answer, or no result, in time.",
        "Answer each poll within 45 s, with `try_again` while there is no result; clients ask again. Where the machine is slow,"
        " give the kit more time: --deadline.",
    ),
    "made names": (
        "Ids and paths are made in another way than the document says.",
        "Clients compute the id of a model from its session's, and take checkpoints apart by the words of their paths.",
    ),
}


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
    places: tuple[Place, ...]
    exchanges: dict[str, RecordedExchange]


def findings(report: Report) -> tuple[Finding, ...]:
    """What is not as the document says, one for each cause; contradictions first, then what explains most rows."""
    groups: dict[str, list[tuple[Row, Observation]]] = {}
    for row in report.checks:
        for one in row.observations:
            if one.outcome in _FOUND:
                groups.setdefault(one.cause or f"check: {row.check}", []).append((row, one))
    found = [_finding(cause, seen, report) for cause, seen in groups.items()]
    return tuple(sorted(found, key=_rank))


def _rank(finding: Finding) -> tuple[int, int]:
    return -SEVERITY.index(finding.outcome), -len(finding.checks) - len(finding.blocked)


def _finding(cause: str, seen: list[tuple[Row, Observation]], report: Report) -> Finding:
    first, observation = seen[0]
    checks = tuple(dict.fromkeys(row.check for row, _ in seen))
    ended = {row.check for row, one in seen if one is row.observations[0]}
    named = tuple(dict.fromkeys(one.operation for _, one in seen if one.operation)) or first.operations
    title, advice = KNOWN.get(cause) or (_title(observation, first), _advice(observation, first))
    return Finding(
        title=title,
        advice=advice,
        outcome=max((one.outcome for _, one in seen), key=SEVERITY.index),
        observed=_distinct(one.text for _, one in seen),
        checks=checks,
        blocked=tuple(row.check for row in report.checks if row.blocked_by in ended),
        operations=named,
        places=tuple(_places(named, (one.schema for _, one in seen))),
        exchanges={name: one for operation in named[:1] for name, one in exchanges_of(operation).items()},
    )


def _title(observation: Observation, row: Row) -> str:
    """What was seen, where it is a cause of its own; else what does not hold."""
    kind, _, rest = observation.cause.partition(": ")
    if kind == "misfit":
        return f"An answer of `{observation.operation}` does not fit its record: {rest}"
    return observation.text if observation.cause else f"Does not hold: {row.statement}"


def _advice(observation: Observation, row: Row) -> str:
    operation = observation.operation
    if observation.cause.startswith("refused: "):
        return f"Clients send what the kit sends: take it, or answer 404 or 501 where there is no `{operation}`."
    if observation.cause.startswith("failed: "):
        return f"`{operation}` was accepted and its result is an error; what the kit asked for is in the document."
    if observation.cause.startswith("misfit: "):
        return f"Answer a `{observation.schema}` as the document describes it; clients refuse anything else."
    if observation.cause.startswith("broken: "):
        return "Answer before the connection is closed; the server's log may say what failed."
    if observation.cause.startswith("crash: "):
        return "Find the exception in the server's log; clients repeat such a request for minutes before they give up."
    return f"What must hold: {row.statement}"


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Each text once, where ids and numbers do not count."""
    return tuple({normalize(text): text for text in reversed(list(texts))}.values())[::-1]


def _places(operations: Iterable[str], schemas: Iterable[str]) -> Iterable[Place]:
    yield from (place_of_operation(name) for name in operations)
    for name in dict.fromkeys(schemas):
        place = place_of_schema(name)
        if place is not None:
            yield place
