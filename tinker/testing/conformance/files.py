"""The report as files, each in a format of its own: JSON, JUnit, Markdown, a badge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from tinker.testing.conformance.badge import as_endpoint, as_svg
from tinker.testing.conformance.findings import Finding, findings
from tinker.testing.conformance.junit import as_junit
from tinker.testing.conformance.markdown import as_markdown
from tinker.testing.conformance.outcome import Report, Row
from tinker.testing.conformance.registry import Check


def write(
    report: Report,
    *,
    json: Path | None = None,
    junit: Path | None = None,
    markdown: Path | None = None,
    badge: Path | None = None,
    strict: bool = False,
) -> None:
    """Write what is asked for; `-` is the standard output. A badge is JSON for shields.io where its name ends so, else SVG.

    The Markdown shows the badge where both are written. ``strict`` counts differences as failures of JUnit.
    """
    image = badge.name if badge is not None and badge.suffix == ".svg" else ""
    for path, content in _contents(report, json, junit, markdown, badge, image, strict):
        with click.open_file(str(path), "wb") as file:
            file.write(content)


def _contents(
    report: Report,
    json: Path | None,
    junit: Path | None,
    markdown: Path | None,
    badge: Path | None,
    image: str,
    strict: bool,
) -> Iterator[tuple[Path, bytes]]:
    if json is not None:
        yield json, as_json(report)
    if junit is not None:
        yield junit, as_junit(report, strict=strict)
    if markdown is not None:
        yield markdown, as_markdown(report, badge=image)
    if badge is not None:
        yield badge, as_endpoint(report) if badge.suffix == ".json" else as_svg(report)


def as_json(report: Report) -> bytes:
    """Return the report as JSON: server, contract, counts, findings, operations, checks, left_out."""
    whole = {
        "server": report.server,
        "label": report.label,
        "contract": report.contract,
        "counts": report.counts,
        "findings": [_finding(one) for one in findings(report)],
        "operations": report.operations,
        "checks": [_row(one) for one in report.checks],
        "left_out": report.left_out,
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def describe_check(check: Check) -> dict[str, Any]:
    """Return a check as plain data: what it is called, what must hold, which operations it is about, and when it runs."""
    return {
        "check": check.name,
        "operations": list(check.operations),
        "statement": check.statement,
        "slow": check.slow,
        "destructive": check.destructive,
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "title": one.title,
        "outcome": one.outcome,
        "observed": one.observed,
        "advice": one.advice,
        "checks": one.checks,
        "blocked": one.blocked,
        "operations": one.operations,
        "places": [{"document": "openapi.yaml", "pointer": place.pointer} for place in one.places],
        "exchanges": one.exchanges,
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "check": row.check,
        "operations": row.operations,
        "statement": row.statement,
        "outcome": row.outcome,
        "how": row.how,
        "causes": [one.cause for one in row.observations],
        "blocked_by": row.blocked_by,
        "seconds": row.seconds,
    }
