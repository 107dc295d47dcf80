"""What is learned of chats beside what TRL marks: equal, or different for a written reason."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from templates.chats import CHATS, Chat
from templates.judge import Example, Judge, encode_publicly, hear, list_forms, read_example
from templates.tally import MARKS
from templates.tokenizers_made import KINDS, make_tokenizer
from templates.wheel import FOR_TRAINING, TEMPLATES

_TABLE = Path(__file__).with_name("differences.toml")
_DIFFERENCES: list[dict[str, Any]] = tomllib.loads(_TABLE.read_text("utf-8"))["difference"]


def _name_difference(judge: Judge, ours: list[int], marked: list[int], before: str) -> str:
    """Return in what way TRL marks other tokens than those that are learned of an answer."""
    one, other = judge.decode(ours), judge.decode(marked)
    if one == other:
        return "tokens"
    opening = other.removesuffix(one)
    if opening != other and before.rstrip().endswith(opening.rstrip()):
        return "opening" if opening.strip() else "seam"
    if one.startswith(other):
        return "end" if one[len(other) :].strip() else "space"
    return "header" if one.endswith(other) else "earlier"


def _encode_marked(tokenizer: Any, name: str, chat: Chat) -> Iterator[list[list[int]]]:
    """Yield the tokens that TRL marks of a chat, for each form that its template reads."""
    options = {**(chat.options or {}), **({"tools": chat.tools} if chat.tools else {})}
    how = {
        "chat_template": FOR_TRAINING[name],
        "return_assistant_tokens_mask": True,
        "return_dict": True,
        **options,
    }
    for messages in list_forms(chat.messages):
        try:
            encoded = tokenizer.apply_chat_template(messages, **how)
        except Exception:  # noqa: BLE001 - whatever jinja2 raises for a form that the template does not read
            continue
        marked = Example(encoded["input_ids"], [bool(mark) for mark in encoded["assistant_masks"]])
        yield [marked.tokens[start:end] for start, end in marked.runs()]


@cache
def _compare(name: str, kind: str) -> dict[str, set[str]]:
    """Return in which ways TRL marks other tokens in chats, and in which chats."""
    tokenizer = make_tokenizer(kind, name, TEMPLATES[name])
    judge, found = Judge(tokenizer, kind), defaultdict[str, set[str]](set)
    for chat_name, chat in CHATS.items():
        if chat.messages[0]["role"] == "assistant" or any(
            "weight" in message for message in chat.messages
        ):
            continue  # what begins a chat is never sampled, and TRL reads no weights
        try:
            with hear():
                examples = [read_example(datum) for datum in encode_publicly(tokenizer, chat)]
        except ValueError:
            MARKS["refused"] += 1
            continue
        ours = [(example, start, end) for example in examples for start, end in example.runs()]
        learned = [example.tokens[start:end] for example, start, end in ours]
        marks = list(_encode_marked(tokenizer, name, chat))
        if learned in marks:
            MARKS["equal"] += 1
            continue
        ways = {"number"}
        for marked in marks:
            if len(marked) == len(ours):
                befores = [judge.decode(example.tokens[:start]) for example, start, _ in ours]
                pairs = zip(learned, marked, befores, strict=True)
                named = {
                    _name_difference(judge, one, other, before)
                    for one, other, before in pairs
                    if one != other
                }
                ways = named if "number" in ways or "earlier" in ways else ways
        MARKS[f"other by {' and '.join(sorted(ways))}"] += 1
        for way in ways:
            found[way].add(chat_name)
    return found


@pytest.mark.parametrize("name", FOR_TRAINING)
def test_what_trl_marks_is_what_is_learned(name: str) -> None:
    """The tokens that TRL marks for training are learned, but for the reasons of the table."""
    found = {
        (kind, way): sorted(chats) for kind in KINDS for way, chats in _compare(name, kind).items()
    }
    known = {row["way"] for row in _DIFFERENCES if name in row["templates"]}
    assert not {key: chats for key, chats in found.items() if key[1] not in known}


@pytest.mark.parametrize("row", _DIFFERENCES, ids=lambda row: row["way"])
def test_differences_are_still_there(row: dict[str, Any]) -> None:
    """A row of the table names the templates that differ in its way, and no other."""
    assert row["reason"]
    gone = [
        name
        for name in row["templates"]
        if not any(row["way"] in _compare(name, kind) for kind in KINDS)
    ]
    assert not gone
