"""The report on a screen: one line for each check, then the findings, one for each cause, and a
summary.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinker.testing.conformance.findings import Finding, findings
from tinker.testing.conformance.outcome import KIT, Outcome, Report, Row

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
