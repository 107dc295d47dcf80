"""The report as files: JSON, JUnit XML, Markdown for the repository or the site of a server, and a
badge for shields.io.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import msgspec

from tinker._version import DISTRIBUTION_VERSION
from tinker.testing.conformance.findings import Finding, findings
from tinker.testing.conformance.outcome import FOUND, Outcome, Report, Row
from tinker.testing.conformance.registry import Check

#: The least share of supported checks, and the color of a badge.
_COLORS = ((1.0, "brightgreen"), (0.9, "green"), (0.75, "yellow"), (0.5, "orange"), (0.0, "red"))
_LONGEST_TEXT, _MOST_OBSERVED = 300, 8  # in Markdown


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
        "checks": [_describe_row(one) for one in report.checks],
        "left_out": report.left_out,
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def _describe_row(row: Row) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(row),
        "how": row.how,
        "causes": [one.cause for one in row.observations],
    }


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
        yield from _finding(number, one)
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


def _finding(number: int, one: Finding) -> Iterator[list[str]]:
    yield [f"### {number}. {_plain(one.title)}"]
    yield [f"**{one.outcome}.** {_plain(one.advice)}"]
    more = len(one.observed) - _MOST_OBSERVED
    seen = [f"- {_plain(text)}" for text in one.observed[:_MOST_OBSERVED]]
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
