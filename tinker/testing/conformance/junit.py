"""The report as JUnit XML, which most CI systems show: one test case for each check."""

from __future__ import annotations

from xml.etree import ElementTree

from tinker.testing.conformance.outcome import Outcome, Report, Row


def as_junit(report: Report, *, strict: bool = False) -> bytes:
    """A contradiction is a failure, with ``strict`` a difference too; what is absent, blocked or left out is skipped."""
    failing = {Outcome.CONTRADICTION, Outcome.DIFFERS} if strict else {Outcome.CONTRADICTION}
    skipped = sum(row.outcome in (Outcome.ABSENT, Outcome.BLOCKED) for row in report.checks) + len(report.left_out)
    suite = ElementTree.Element(
        "testsuite",
        name=f"tinker conformance: {report.label or report.server}",
        tests=str(len(report.checks) + len(report.left_out)),
        failures=str(sum(row.outcome in failing for row in report.checks)),
        errors="0",
        skipped=str(skipped),
        time=f"{sum(row.seconds for row in report.checks):.3f}",
    )
    for row in report.checks:
        _add_row(suite, row, failing)
    for one in report.left_out:
        ElementTree.SubElement(_case(suite, one.check, 0.0), "skipped", message=f"not run: {one.reason}")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _add_row(suite: ElementTree.Element, row: Row, failing: set[Outcome]) -> None:
    case = _case(suite, row.check, row.seconds)
    told = _printable("\n".join([row.statement, *(f"- {how}" for how in row.how)]))
    if row.outcome in failing:
        ElementTree.SubElement(case, "failure", type=row.outcome, message=_printable(row.statement)).text = told
    elif row.outcome is Outcome.BLOCKED:
        ElementTree.SubElement(case, "skipped", message=f"blocked by {row.blocked_by}")
    elif row.outcome is Outcome.ABSENT:
        ElementTree.SubElement(case, "skipped", message=_printable("; ".join(row.how)))
    elif row.how:
        ElementTree.SubElement(case, "system-out").text = told


def _case(suite: ElementTree.Element, check: str, seconds: float) -> ElementTree.Element:
    module, _, name = check.partition(".")
    return ElementTree.SubElement(suite, "testcase", classname=f"conformance.{module}", name=name, time=f"{seconds:.3f}")


def _printable(text: str) -> str:
    """Return the text without what XML cannot hold: answers of servers are quoted in it."""
    return "".join(char for char in text if char.isprintable() or char == "\n")
