"""From rows to findings: one cause is one finding, with the rows that show it and those that it
blocks.

A finding points to the place in openapi.yaml, and to a recorded exchange of a real client that
shows the correct form.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker.testing.conformance.outcome import (
    FOUND,
    SEVERITY,
    Observation,
    Outcome,
    Report,
    Row,
    normalize,
)

_MOST_EXCHANGES = 3
_LONGEST_TITLE = 120
DOCUMENT = "openapi.yaml"
_RESULT = "retrieve_future:"


class RecordedExchange(msgspec.Struct, frozen=True):
    """An exchange of a real client. ``recording``: its file in the repository and
    its number there.
    """

    recording: str
    request: str
    sent: Any
    status: int
    answered: Any


@attrs.frozen(kw_only=True)
class Finding:
    """One cause. ``observed`` is what was seen, ``checks`` names the rows that show it, ``blocked``
    those it blocks.
    """

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
    """Return what is not as the document says, one for each cause; contradictions first, then what
    explains most rows.
    """
    groups: dict[str, list[tuple[Row, Observation]]] = {}
    blockers = {row.blocked_by for row in report.checks}
    blocking = frozenset(
        row.observations[0].cause
        for row in report.checks
        if row.check in blockers and row.observations
    )
    for row in report.checks:
        for one in row.observations:
            if one.outcome in FOUND and (one.cause or row.outcome is not Outcome.ABSENT):
                groups.setdefault(group_of(one, row.check, blocking), []).append((row, one))
    found = [_finding(cause, seen, report) for cause, seen in groups.items()]
    return tuple(
        sorted(
            found,
            key=lambda one: (-SEVERITY.index(one.outcome), -len(one.checks) - len(one.blocked)),
        )
    )


def _finding(cause: str, seen: list[tuple[Row, Observation]], report: Report) -> Finding:
    first, observation = seen[0]
    checks = tuple(dict.fromkeys(row.check for row, _ in seen))
    ended = {row.check for row, one in seen if one is row.observations[0]}
    named = (
        tuple(dict.fromkeys(one.operation for _, one in seen if one.operation)) or first.operations
    )
    causes = {one.cause for _, one in seen}
    recorded = _read_exchanges()
    wanted = [
        name for operation in named[:_MOST_EXCHANGES] for name in (operation, _RESULT + operation)
    ]
    own = (_title(observation, first), _advice(observation, first))
    title, advice = (
        read_causes().get(observation.cause, own) if len(causes) == 1 else read_causes()[cause]
    )
    return Finding(
        title=title,
        advice=advice,
        outcome=max((one.outcome for _, one in seen), key=SEVERITY.index),
        observed=_distinct(one.text for _, one in seen),
        checks=checks,
        blocked=tuple(row.check for row in report.checks if row.blocked_by in ended),
        operations=named,
        places=tuple(_places(named, (one.schema for _, one in seen))),
        exchanges={name: recorded[name] for name in wanted if name in recorded},
    )


def _title(observation: Observation, row: Row) -> str:
    """Return what was seen, where it is a cause of its own; else what does not hold."""
    kind, _, rest = observation.cause.partition(": ")
    if kind == "misfit":
        return f"A response of `{observation.operation}` does not fit its record: {rest}"
    texts = {one.text for one in row.observations if one.outcome in FOUND and not one.cause}
    if observation.cause:
        return observation.text
    if len(texts) == 1 and (shown := _shorten(observation.text)):
        return shown[:1].upper() + shown[1:]
    return f"Does not hold: {row.statement}"


def _shorten(text: str) -> str:
    """Return the text as a title: whole, or what stands before its first colon; nothing where that
    is too long, too.
    """
    return next((one for one in (text, text.partition(": ")[0]) if len(one) <= _LONGEST_TITLE), "")


def _advice(observation: Observation, row: Row) -> str:
    """Return what to do, by the kind of the cause."""
    kind, row_says = observation.cause.partition(": ")[0], f"What must hold: {row.statement}"
    advice = read_causes().get(f"kind: {kind}", ("", row_says))[1]
    return advice.format(
        operation=observation.operation, schema=observation.schema, statement=row.statement
    )


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Return each text once, where ids and numbers do not count."""
    return tuple({normalize(text): text for text in reversed(list(texts))}.values())[::-1]


def _places(operations: Iterable[str], schemas: Iterable[str]) -> Iterable[str]:
    """Yield where the operations and the records are described."""
    for operation in map(OPERATIONS.__getitem__, operations):
        path = operation.path.replace("~", "~0").replace("/", "~1")  # as a JSON pointer
        yield f"{DOCUMENT}#/paths/{path}/{operation.method.lower()}"
    for name in dict.fromkeys(schemas):
        if hasattr(models, name):  # else it is no record of the document
            yield f"{DOCUMENT}#/components/schemas/{name}"


@cache
def _read_toml() -> dict[str, dict[str, str]]:
    return tomllib.loads(
        files("tinker.testing.conformance").joinpath("causes.toml").read_text(encoding="utf-8")
    )


@cache
def read_causes() -> dict[str, tuple[str, str]]:
    """Return the title of each cause that many checks meet, and what its author can do, from
    `causes.toml`.
    """
    return {
        cause: (about["title"], about["advice"])
        for cause, about in _read_toml().items()
        if "title" in about
    }


def group_of(one: Observation, check: str, blocking: frozenset[str]) -> str:
    """Return what an observation is grouped by: its cause (with its kind where that blocks
    nothing), else its check.

    `causes.toml` lists the causes and kinds that are told together where nothing else is blocked by
    them.
    """
    if not one.cause:
        return f"check: {check}"
    kind = _read_toml()["groups"].get(one.cause.partition(": ")[0])
    return one.cause if kind is None or one.cause in blocking else kind


@cache
def _read_exchanges() -> dict[str, RecordedExchange]:
    """Return the recorded exchanges of operations: their requests, and the retrievals of their
    results.
    """
    content = files("tinker.testing.conformance").joinpath("evidence.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, RecordedExchange])
