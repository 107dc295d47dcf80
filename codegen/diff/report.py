"""Writes findings as text, JSON or a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from codegen.diff.findings import COMPATIBLE, LEVELS, DiffFinding


def write_text(findings: Sequence[DiffFinding]) -> str:
    """Return one line for each finding, worst first, and how many there are of each level."""
    lines = [str(finding) for finding in findings] or ["no change"]
    return "\n".join([*lines, *([summary(findings)] if findings else [])])


def summary(findings: Sequence[DiffFinding]) -> str:
    counts = count_levels(findings)
    return ", ".join(f"{level}: {counts[level]}" for level in (*LEVELS, COMPATIBLE))


def count_levels(findings: Sequence[DiffFinding]) -> dict[str, int]:
    """Return how many findings break whom; one that breaks two counts twice."""
    counts = {level: sum(level in finding.breaks for finding in findings) for level in LEVELS}
    return counts | {COMPATIBLE: sum(not finding.breaks for finding in findings)}


def write_json(findings: Sequence[DiffFinding]) -> str:
    """Return one object: the counts, and the findings with their fields."""
    found = [
        {
            "rule": finding.rule,
            "breaks": list(finding.breaks),
            "pointer": finding.pointer,
            "message": finding.sentence,
            "uses": list(finding.uses),
        }
        for finding in findings
    ]
    return json.dumps(
        {"counts": count_levels(findings), "findings": found}, ensure_ascii=False, indent=2
    )


def write_markdown(findings: Sequence[DiffFinding]) -> str:
    """Return a table, such as a comment on a pull request shows it."""
    if not findings:
        return "The contract did not change."
    rows = [
        (
            f"| {finding.level} | `{escape(finding.pointer)}` | {escape(finding.sentence)} | "
            f"{finding.rule} |"
        )
        for finding in findings
    ]
    return "\n".join(
        ["| Breaks | Where | What | Rule |", "|---|---|---|---|", *rows, "", summary(findings)]
    )


def escape(text: str) -> str:
    """Return text that stays in its cell and is no markup."""
    for character in "\\|<>*_`":
        text = (
            text
            if character not in text
            else text.replace(
                character, {"<": "&lt;", ">": "&gt;"}.get(character, f"\\{character}")
            )
        )
    return " ".join(text.split())


FORMATS: Mapping[str, Callable[[Sequence[DiffFinding]], str]] = {
    "text": write_text,
    "json": write_json,
    "markdown": write_markdown,
}
