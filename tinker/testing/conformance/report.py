"""The report of a run: its findings, each of one cause, on a screen and as files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker._version import DISTRIBUTION_VERSION
from tinker.testing.conformance import Check
from tinker.testing.conformance.outcome import (
    FOUND,
    KIT,
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

    `causes.toml` lists the causes and kinds that are merged where nothing else is blocked by
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


STYLES = {
    Outcome.SUPPORTED: "green",
    Outcome.ABSENT: "dim",
    Outcome.BLOCKED: "magenta",
    Outcome.DIFFERS: "yellow",
    Outcome.CONTRADICTION: "bold red",
}
PIPE_WIDTH = 120
_MOST_OBSERVED = 6


def console() -> Console:
    """Return a console: as wide as the terminal, or in a pipe 120 columns without escape codes."""
    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def show(report: Report, to: Console) -> None:
    """Print the whole report."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    # names of checks and outcomes are not wrapped
    for name in ("check", "outcome", "requirement, and where it fails"):
        table.add_column(name, no_wrap=name in ("check", "outcome"))
    for row in report.checks:
        table.add_row(row.check, Text(row.outcome, STYLES[row.outcome]), _describe(row))
    to.print(table)
    for number, finding in enumerate(findings(report), 1):
        to.print()
        to.print(_describe_finding(number, finding))
    to.print()
    to.print(summary(report))


def _describe(row: Row) -> Text:
    told = Text(row.statement)
    if row.blocked_by is not None and row.blocked_by != KIT:
        return told.append(f"\n- blocked by {row.blocked_by}", STYLES[row.outcome])
    for how in row.how:
        told.append(f"\n- {how}", STYLES[row.outcome])
    return told


def _describe_finding(number: int, finding: Finding) -> Text:
    """Return what is wrong, what was seen, what to do, and where to look."""
    told = Text(f"{number}. {finding.title}", STYLES[finding.outcome])
    for seen in finding.observed[:_MOST_OBSERVED]:
        told.append(f"\n   - {seen}", "default")
    if len(finding.observed) > _MOST_OBSERVED:
        told.append(
            f"\n   - and {len(finding.observed) - _MOST_OBSERVED} more of this kind", "default"
        )
    told.append(f"\n   {finding.advice}", "default")
    recorded = [f"{name}: {exchange.recording}" for name, exchange in finding.exchanges.items()]
    rows = {
        "contract": finding.places,
        "recorded": recorded,
        "affected checks": finding.checks,
        "blocks": finding.blocked,
    }
    for name, values in rows.items():
        if values:
            told.append(f"\n   {name}: {', '.join(values)}", "dim")
    return told


def summary(report: Report) -> Text:
    """Return how many checks came out which way, what the worst is for operations, and what was
    left out.
    """
    counts = ", ".join(f"{count} {outcome}" for outcome, count in report.counts.items() if count)
    told = Text(f"{report.label or report.server}: {counts or 'nothing was checked'}")
    found = len(findings(report))
    told.append(f"; {found} finding{'s' * (found != 1)}" if found else "")
    for outcome in (Outcome.CONTRADICTION, Outcome.DIFFERS, Outcome.BLOCKED, Outcome.ABSENT):
        names = [name for name, worst in report.operations.items() if worst is outcome]
        if names:
            what = {
                Outcome.ABSENT: "not supported",
                Outcome.BLOCKED: "not tried, as what they need failed",
            }.get(outcome)
            what = what or f"operations with {outcome}"
            told.append(f"\n{what}: {', '.join(names)}", STYLES[outcome])
    for reason in sorted({one.reason for one in report.left_out}):
        names = [one.check for one in report.left_out if one.reason == reason]
        option = (
            f", {reason}" if reason in ("skipped", "interrupted") else f", {reason} (--{reason})"
        )
        told.append(f"\nnot run{option}: {', '.join(names)}", "dim")
    return told


#: The least share of supported checks, and the color of a badge.
_COLORS = ((1.0, "brightgreen"), (0.9, "green"), (0.75, "yellow"), (0.5, "orange"), (0.0, "red"))
_LONGEST_TEXT, _MOST_IN_FILES = 300, 8  # in Markdown


def write(
    report: Report,
    *,
    json: Path | None = None,
    junit: Path | None = None,
    markdown: Path | None = None,
    badge: Path | None = None,
) -> None:
    """Write the requested files; `-` is the standard output."""
    for path, encode in (
        (json, as_json),
        (junit, as_junit),
        (markdown, as_markdown),
        (badge, as_badge),
    ):
        if path is not None:
            with click.open_file(str(path), "wb") as file:
                file.write(encode(report))


def as_json(report: Report) -> bytes:
    """Return the report as JSON: server, contract, counts, findings, operations,
    checks, left_out.
    """
    whole = {
        "server": report.server,
        "label": report.label,
        "contract": report.contract,
        "counts": report.counts,
        "findings": findings(report),
        "operations": report.operations,
        "checks": [
            {
                **msgspec.to_builtins(row),
                "how": row.how,
                "causes": [one.cause for one in row.observations],
            }
            for row in report.checks
        ],
        "left_out": report.left_out,
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def describe_check(check: Check) -> dict[str, Any]:
    """Return a check as plain data: its name, operations and statement, and whether a usual run
    leaves it out.
    """
    return {
        "check": check.name,
        "operations": list(check.operations),
        "statement": check.statement,
        "slow": check.slow,
        "destructive": check.destructive,
    }


def as_badge(report: Report) -> bytes:
    """Return a shields.io endpoint: how many checks are supported, of those of features that the
    server has, and the others.

    Its color is that of the share: bright green for all of them, red below half.
    """
    counts = report.counts
    right, absent = counts[Outcome.SUPPORTED], counts[Outcome.ABSENT]
    tried = len(report.checks) - absent
    message = f"{right} of {tried} checks" + (f", {absent} not offered" if absent else "")
    color = next(color for least, color in _COLORS if right >= least * tried)
    shown = {"schemaVersion": 1, "label": "Tinker API", "message": message, "color": color}
    return msgspec.json.encode(shown) + b"\n"


def as_junit(report: Report) -> bytes:
    """Return JUnit XML, which most CI systems show, with one test case for each check.

    What contradicts the contract or differs from it is a failure; what is absent, blocked or left
    out is skipped.
    """
    skipped = sum(row.outcome in (Outcome.ABSENT, Outcome.BLOCKED) for row in report.checks) + len(
        report.left_out
    )
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=f"tinker conformance: {report.label or report.server}",
        tests=str(len(report.checks) + len(report.left_out)),
        failures=str(sum(row.outcome in FOUND for row in report.checks)),
        errors="0",
        skipped=str(skipped),
        time=f"{sum(row.seconds for row in report.checks):.3f}",
    )
    for row in report.checks:
        _add_row(suite, row)
    for one in report.left_out:
        ElementTree.SubElement(
            _add_case(suite, one.check, 0.0), "skipped", message=f"not run: {one.reason}"
        )
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _add_row(suite: ElementTree.Element, row: Row) -> None:
    case = _add_case(suite, row.check, row.seconds)
    if row.outcome in FOUND:
        text = _printable("\n".join([row.statement, *(f"- {how}" for how in row.how)]))
        ElementTree.SubElement(
            case, "failure", type=row.outcome, message=_printable(row.statement)
        ).text = text
    elif row.outcome is Outcome.BLOCKED:
        ElementTree.SubElement(case, "skipped", message=f"blocked by {row.blocked_by}")
    elif row.outcome is Outcome.ABSENT:
        ElementTree.SubElement(case, "skipped", message=_printable("; ".join(row.how)))


def _add_case(suite: ElementTree.Element, check: str, seconds: float) -> ElementTree.Element:
    module, _, name = check.partition(".")
    return ElementTree.SubElement(
        suite, "testcase", classname=f"conformance.{module}", name=name, time=f"{seconds:.3f}"
    )


def _printable(text: str) -> str:
    """Return the text without characters that XML cannot hold, because it quotes responses of
    servers.
    """
    return "".join(char for char in text if char.isprintable() or char == "\n")


def as_markdown(report: Report) -> bytes:
    """Return the whole report."""
    found = findings(report)
    return "\n".join(line for part in _parts(report, found) for line in (*part, "")).encode()


def _parts(report: Report, found: tuple[Finding, ...]) -> Iterator[list[str]]:
    label = report.label or report.server
    yield [f"# Conformance of {_plain(label)}"]
    yield [
        f"`tinker conformance` {DISTRIBUTION_VERSION} wrote this report "
        f"on {_plain(label)}. It checks version"
        f" {report.contract} of the contract, `openapi.yaml`."
    ]
    yield _counts(report)
    yield ["## Findings"]
    grouped = "The findings group the checks by cause: one change of the server fixes one finding."
    yield [grouped if found else "There are none."]
    for number, one in enumerate(found, 1):
        yield from _finding_markdown(number, one)
    yield from _absent(report)
    yield ["## Checks"]
    yield _checks(report)
    yield from _exchanges(found)


def _counts(report: Report) -> list[str]:
    rows = [
        f"| {outcome} | {count} | {_MEANINGS[outcome]} |"
        for outcome, count in report.counts.items()
    ]
    left = (
        [f"| not run | {len(report.left_out)} | slow, destructive or skipped |"]
        if report.left_out
        else []
    )
    return ["| outcome | checks | meaning |", "|---|--:|---|", *rows, *left]


_MEANINGS = {
    Outcome.SUPPORTED: "as the contract says",
    Outcome.ABSENT: "missing, which the contract allows",
    Outcome.BLOCKED: "not run, because a check that it depends on fails",
    Outcome.DIFFERS: "present, but different from the contract",
    Outcome.CONTRADICTION: (
        "violates the contract, loses work, raises an unhandled error or does not respond"
    ),
}


def _finding_markdown(number: int, one: Finding) -> Iterator[list[str]]:
    yield [f"### {number}. {_plain(one.title)}"]
    yield [f"**{one.outcome}.** {_plain(one.advice)}"]
    more = len(one.observed) - _MOST_IN_FILES
    seen = [f"- {_plain(text)}" for text in one.observed[:_MOST_IN_FILES]]
    yield [*seen, *([f"- and {more} more of this kind"] if more > 0 else [])]
    places = [f"- in the contract: `{place}`" for place in one.places]
    shown = [f"- correct form: [`{name}`](#{_anchor(name)}), recorded" for name in one.exchanges]
    rows = [f"- affected checks: {_codes(one.checks)}"]
    blocks = [f"- blocks: {_codes(one.blocked)}"] if one.blocked else []
    yield [*places, *shown, *rows, *blocks]


def _absent(report: Report) -> Iterator[list[str]]:
    rows = [row for row in report.checks if row.outcome is Outcome.ABSENT]
    if rows:
        yield ["## Not offered"]
        yield ["These are optional."]
        yield [f"- `{row.check}`: {_plain('; '.join(row.how))}" for row in rows]


def _checks(report: Report) -> list[str]:
    head = ["| check | outcome | requirement |", "|---|---|---|"]
    rows = [
        (
            f"| `{row.check}` | "
            f"{f'blocked by `{row.blocked_by}`' if row.blocked_by else row.outcome} | "
            f"{_plain(row.statement)} |"
        )
        for row in report.checks
    ]
    left = [
        f"| `{one.check}` | not run ({one.reason}) | {_plain(one.statement)} |"
        for one in report.left_out
    ]
    return [*head, *rows, *left]


def _exchanges(found: tuple[Finding, ...]) -> Iterator[list[str]]:
    shown = {name: exchange for one in found for name, exchange in one.exchanges.items()}
    if shown:
        yield ["## Recorded exchanges"]
        yield ["What a real client sent, and a response that it accepts."]
    for name, exchange in sorted(shown.items()):
        yield [f'### <a id="{_anchor(name)}"></a>`{name}`']
        yield [f"`{exchange.request}`, status {exchange.status} (`{exchange.recording}`)"]
        both = msgspec.json.encode({"sent": exchange.sent, "answered": exchange.answered})
        yield ["```json", *msgspec.json.format(both, indent=2).decode().splitlines(), "```"]


def _anchor(name: str) -> str:
    return "exchange-" + name.replace(":", "-").replace("_", "-")


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _plain(text: str) -> str:
    """Escape text that a server may have written, so that Markdown shows it unchanged. Code between
    backquotes stays code.
    """
    cut = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    joined = " ".join(cut.split())
    if joined.count("`") % 2:
        joined = joined.replace("`", "'")
    parts = joined.split("`")
    return "`".join(
        part if index % 2 else _escape(part) for index, part in enumerate(parts)
    ).replace("|", "\\|")


def _escape(text: str) -> str:
    for char in "\\*_[]":
        text = text.replace(char, f"\\{char}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
