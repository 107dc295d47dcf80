"""The report as Markdown, for the repository or the site of a server."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tinker._version import DISTRIBUTION_VERSION
from tinker.testing.conformance.findings import Finding, findings
from tinker.testing.conformance.outcome import Outcome, Report

_LONGEST_TEXT, _MOST_OBSERVED = 300, 8


def as_markdown(report: Report) -> bytes:
    """Return the whole report."""
    found = findings(report)
    return "\n".join(line for part in _parts(report, found) for line in (*part, "")).encode()


def _parts(report: Report, found: tuple[Finding, ...]) -> Iterator[list[str]]:
    label = report.label or report.server
    yield [f"# Conformance of {_plain(label)}"]
    yield [
        f"`tinker conformance` {DISTRIBUTION_VERSION} wrote this report on {_plain(label)}. It checks version"
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
    rows = [f"| {outcome} | {count} | {_MEANINGS[outcome]} |" for outcome, count in report.counts.items()]
    left = [f"| not run | {len(report.left_out)} | slow, destructive or skipped |"] if report.left_out else []
    return ["| outcome | checks | meaning |", "|---|--:|---|", *rows, *left]


_MEANINGS = {
    Outcome.SUPPORTED: "as the contract says",
    Outcome.ABSENT: "missing, which the contract allows",
    Outcome.BLOCKED: "not run, because a check that it depends on fails",
    Outcome.DIFFERS: "present, but different from the contract",
    Outcome.CONTRADICTION: "violates the contract, loses work, raises an unhandled error or does not respond",
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
        f"| `{row.check}` | {f'blocked by `{row.blocked_by}`' if row.blocked_by else row.outcome} | {_plain(row.statement)} |"
        for row in report.checks
    ]
    left = [f"| `{one.check}` | not run ({one.reason}) | {_plain(one.statement)} |" for one in report.left_out]
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
    """Escape text that a server may have written, so that Markdown shows it unchanged. Code between backquotes stays code."""
    cut = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
    joined = " ".join(cut.split())
    if joined.count("`") % 2:
        joined = joined.replace("`", "'")
    parts = joined.split("`")
    return "`".join(part if index % 2 else _escape(part) for index, part in enumerate(parts)).replace("|", "\\|")


def _escape(text: str) -> str:
    for char in "\\*_[]":
        text = text.replace(char, f"\\{char}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
