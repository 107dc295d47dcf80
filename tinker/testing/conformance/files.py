"""The report as files: JSON, JUnit XML, Markdown, and a badge for shields.io."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import msgspec

from tinker.testing.conformance.findings import findings
from tinker.testing.conformance.markdown import as_markdown
from tinker.testing.conformance.outcome import FOUND, Outcome, Report, Row
from tinker.testing.conformance.registry import Check

#: The least share of supported checks, and the color of a badge.
_COLORS = ((1.0, "brightgreen"), (0.9, "green"), (0.75, "yellow"), (0.5, "orange"), (0.0, "red"))


def write(
    report: Report,
    *,
    json: Path | None = None,
    junit: Path | None = None,
    markdown: Path | None = None,
    badge: Path | None = None,
) -> None:
    """Write the requested files; `-` is the standard output."""
    for path, encode in ((json, as_json), (junit, as_junit), (markdown, as_markdown), (badge, as_badge)):
        if path is not None:
            with click.open_file(str(path), "wb") as file:
                file.write(encode(report))


def as_json(report: Report) -> bytes:
    """Return the report as JSON: server, contract, counts, findings, operations, checks, left_out."""
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
    return {**msgspec.to_builtins(row), "how": row.how, "causes": [one.cause for one in row.observations]}


def describe_check(check: Check) -> dict[str, Any]:
    """Return a check as plain data: its name, operations and statement, and whether a usual run leaves it out."""
    return {
        "check": check.name,
        "operations": list(check.operations),
        "statement": check.statement,
        "slow": check.slow,
        "destructive": check.destructive,
    }


def as_badge(report: Report) -> bytes:
    """Return a shields.io endpoint: how many checks are supported, of those of features that the server has, and the others.

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

    What contradicts the contract or differs from it is a failure; what is absent, blocked or left out is skipped.
    """
    skipped = sum(row.outcome in (Outcome.ABSENT, Outcome.BLOCKED) for row in report.checks) + len(report.left_out)
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
        ElementTree.SubElement(_add_case(suite, one.check, 0.0), "skipped", message=f"not run: {one.reason}")
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _add_row(suite: ElementTree.Element, row: Row) -> None:
    case = _add_case(suite, row.check, row.seconds)
    if row.outcome in FOUND:
        text = _printable("\n".join([row.statement, *(f"- {how}" for how in row.how)]))
        ElementTree.SubElement(case, "failure", type=row.outcome, message=_printable(row.statement)).text = text
    elif row.outcome is Outcome.BLOCKED:
        ElementTree.SubElement(case, "skipped", message=f"blocked by {row.blocked_by}")
    elif row.outcome is Outcome.ABSENT:
        ElementTree.SubElement(case, "skipped", message=_printable("; ".join(row.how)))


def _add_case(suite: ElementTree.Element, check: str, seconds: float) -> ElementTree.Element:
    module, _, name = check.partition(".")
    return ElementTree.SubElement(suite, "testcase", classname=f"conformance.{module}", name=name, time=f"{seconds:.3f}")


def _printable(text: str) -> str:
    """Return the text without characters that XML cannot hold, because it quotes responses of servers."""
    return "".join(char for char in text if char.isprintable() or char == "\n")
