"""Counts of a run, which it prints at its end."""

from __future__ import annotations

from collections import Counter, defaultdict

from templates.chats import COMMON

CASES: Counter[str] = Counter()
# of the common chats, with the tokenizer that joins newlines
COMMON_CASES: Counter[str] = Counter()
REFUSALS: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
MARKS: Counter[str] = Counter()


def count_case(kind: str, template: str, chat: str, outcome: str, words: str = "") -> None:
    """Count what came of a chat."""
    CASES[outcome] += 1
    if kind == "byte-level" and chat in COMMON:
        COMMON_CASES[outcome] += 1
    if words:
        REFUSALS[template][words].add(chat)


def describe() -> list[str]:
    """Return the lines to print."""
    lines = (
        [f"by the rules: {_describe(CASES)}; of the common chats: {_describe(COMMON_CASES)}"]
        if CASES
        else []
    )
    for template, refused in sorted(REFUSALS.items()):
        lines += [
            f"{template} refuses {', '.join(sorted(chats))}: {words}"
            for words, chats in sorted(refused.items())
        ]
    return lines + ([f"beside the marks of TRL: {_describe(MARKS)}"] if MARKS else [])


def _describe(counts: Counter[str]) -> str:
    return (
        ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
        + f" of {counts.total():,}"
    )
