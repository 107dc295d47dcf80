"""The report for people: one line for each check, with a reason where it is not supported, and a summary."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinker.testing.conformance.outcome import Outcome, Report, Row
from tinker.testing.conformance.registry import Check

STYLES = {Outcome.SUPPORTED: "green", Outcome.ABSENT: "dim", Outcome.DIFFERS: "yellow", Outcome.CONTRADICTION: "bold red"}
PIPE_WIDTH = 120


def console() -> Console:
    """On a terminal as wide as it is; on a pipe 120 columns without escape codes."""
    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


def show(report: Report, to: Console) -> None:
    """Print the whole report."""
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("what must hold, and where it does not")
    for row in report.checks:
        table.add_row(row.check, Text(row.outcome, STYLES[row.outcome]), _describe(row))
    to.print(table)
    to.print()
    to.print(summary(report))


def _describe(row: Row) -> Text:
    told = Text(row.statement)
    for how in row.how:
        told.append(f"\n- {how}", STYLES[row.outcome])
    return told


def summary(report: Report) -> Text:
    """How many checks came out which way, what the worst is for operations, and what was left out."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in report.counts.items() if count)
    told = Text(f"{report.server}: {counts or 'nothing was checked'}")
    for outcome in (Outcome.CONTRADICTION, Outcome.DIFFERS, Outcome.ABSENT):
        names = [name for name, worst in report.operations.items() if worst is outcome]
        if names:
            told.append(f"\noperations with {outcome}: {', '.join(names)}", STYLES[outcome])
    for reason in sorted({one.reason for one in report.left_out}):
        names = [one.check for one in report.left_out if one.reason == reason]
        told.append(f"\nnot run, {reason} (--{reason}): {', '.join(names)}", "dim")
    return told


def show_checks(checks: tuple[Check, ...], to: Console) -> None:
    """Print what there is to check."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("what must hold")
    table.add_column("operations")
    for one in checks:
        table.add_row(one.name, one.statement, ", ".join(one.operations))
    to.print(table)


def as_json(report: Report) -> bytes:
    """The report as JSON: server, contract, counts, operations, checks, left_out."""
    whole = {
        "server": report.server,
        "contract": report.contract,
        "counts": report.counts,
        "operations": report.operations,
        "checks": report.checks,
        "left_out": report.left_out,
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"
