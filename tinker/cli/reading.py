"""Reading JSON Lines files, and the checks of prompts, token ids and keys."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import click

from tinker._chat import read_messages
from tinker.cli.errors import CommandFailed

Row = TypeVar("Row")
#: A text, the ids of its tokens, or the messages of a chat.
Prompt: TypeAlias = str | list[Any]

STANDARD_INPUT = Path("standard input")  #: What a dash means. Messages show the name; only this very object is meant.
_EXPECTED = 'Expected JSON Lines: one object a line, such as {"prompt": "2 + 2 =", "completion": " 4"}'
_PARQUET = "PAR1"  # begins each file
_TABLE_SUFFIXES = (".csv", ".tsv")
#: Names of the keys in other data sets.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("instruction", "input", "inputs", "question", "query", "problem"),
    "completion": ("output", "target", "targets", "label", "solution", "chosen"),
    "messages": ("conversations", "conversation", "dialog", "dialogue", "chat"),
    "text": ("content", "document"),
    "tokens": ("input_ids", "token_ids"),
}


class RowError(ValueError):
    """An invalid line, with advice."""

    def __init__(self, message: str, *advice: str) -> None:
        super().__init__(message)
        self.advice = advice


def read_rows(file: Path, what: str, parse: Callable[[dict[str, Any]], Row]) -> list[Row]:
    """Read the rows of a file as :func:`read_numbered`, without their numbers."""
    return [row for _, row in read_numbered(file, what, parse)]


def read_numbered(file: Path, what: str, parse: Callable[[dict[str, Any]], Row]) -> list[tuple[int, Row]]:
    """Read the rows of a file, one JSON object per line, and the number of each line from 1.

    Blank lines and a byte order mark are skipped. CommandFailed names the line that is not an object, or for which ``parse``
    raises ValueError, TypeError or KeyError. Other formats, such as CSV, are recognized.
    """
    rows: list[tuple[int, Row]] = []
    for number, record in _read_records(file):
        try:
            if record.get("system"):  # which other data sets have beside the prompt
                raise ValueError('"system" is not read: make it the first of "messages", {"role": "system", "content": ...}')
            rows.append((number, parse(record)))
        except (ValueError, TypeError, KeyError) as error:
            advice = error.advice if isinstance(error, RowError) else ()
            raise CommandFailed(f"{file}, line {number}: {error}", *advice) from error
    if not rows:
        raise CommandFailed(f"{file} has no {what}")
    return rows


def open_data(file: Path) -> io.BufferedReader | io.BytesIO:
    """Open a file, or what standard input holds, which is kept for the command because it is read several times."""
    if file is not STANDARD_INPUT:
        return file.open("rb")
    kept = click.get_current_context().meta
    if "tinker.standard_input" not in kept:
        kept["tinker.standard_input"] = sys.stdin.buffer.read()
    return io.BytesIO(kept["tinker.standard_input"])


def _read_records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line, from 1, and its object."""
    with io.TextIOWrapper(open_data(file), encoding="utf-8-sig") as lines:
        is_first = True
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    if is_first:
                        _check_form(file, line.strip())
                    is_first = False
                    yield number, _parse(file, number, line.rstrip("\r\n"))
        except UnicodeDecodeError:
            with open_data(file) as data:
                _check_form(file, data.read(len(_PARQUET)).decode("latin-1"))
            raise CommandFailed(f"{file} is not text in UTF-8", _EXPECTED) from None


def _parse(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise CommandFailed(f"{file}, line {number}: not JSON: {error.msg} (column {error.colno})", _EXPECTED) from None
    if not isinstance(value, dict):
        raise CommandFailed(f"{file}, line {number}: a line is an object, {{...}}", _EXPECTED)
    return cast("dict[str, Any]", value)


def _check_form(file: Path, first: str) -> None:
    """Raise CommandFailed if the first line is that of an array, of an object over several lines, of a table or of Parquet."""
    if first.startswith(_PARQUET):
        loader, form = "parquet", "a Parquet file"
    elif first.startswith("["):
        loader, form = "json", "a JSON array"
    elif file.suffix.lower() in _TABLE_SUFFIXES or _is_header(first):
        loader, form = "csv", "a table (CSV), not JSON Lines"
    elif first == "{":
        raise CommandFailed(f"{file} has an object over several lines", _EXPECTED)
    else:
        return
    raise CommandFailed(f"{file} is {form}", explain_dataset(loader, file), _EXPECTED)


def explain_dataset(name: str, file: Path | None = None) -> str:
    """Explain how to write a dataset into a file, with its name and the file that it is in."""
    data_files = f', data_files="{file}"' if file else ""
    return f'This writes JSON Lines: datasets.load_dataset("{name}"{data_files}, split="train").to_json("train.jsonl")'


def _is_header(line: str) -> bool:
    """Return whether a line looks like the names of columns."""
    names = [name.strip(' "') for name in line.replace("\t", ",").replace(";", ",").split(",")]
    return len(names) > 1 and all(name.replace(" ", "_").isidentifier() for name in names)


def check_prompt(record: dict[str, Any]) -> Prompt:
    """Return the prompt of a line: of ``{"prompt": text or token ids}`` or ``{"messages": [...]}``. ValueError for another."""
    names = ("prompt", "messages")
    name = next((name for name in names if name in record), None)
    if name is None:
        raise ValueError(explain_keys(record, 'a line is an object with "prompt" or "messages"', names, names))
    prompt: Any = record[name]
    if not prompt:
        raise ValueError(f'"{name}" is empty')
    if name == "messages" or (isinstance(prompt, list) and isinstance(prompt[0], dict)):
        prompt = read_messages(cast("object", prompt))
        while prompt and prompt[-1]["role"] == "assistant":  # the answer of a training example
            prompt.pop()
        if not prompt:
            raise ValueError(f'"{name}" has only answers, and nothing to answer')
    elif not isinstance(prompt, str):
        check_token_ids(record[name], '"prompt" must be text or a list of integers from 0')
    return cast("Prompt", prompt)


def check_token_ids(tokens: object, rule: str) -> None:
    """Raise ValueError with the rule and the first position, from 0, that is not a token id."""
    if not isinstance(tokens, list):
        raise ValueError(f"{rule}, got {type(tokens).__name__}")
    for position, token in enumerate(cast("list[object]", tokens)):
        if type(token) is not int or token < 0:
            raise ValueError(f"{rule}; at position {position} it has {json.dumps(token)[:40]}")


def explain_keys(line: dict[str, Any], lacking: str, names: Collection[str], known: Collection[str]) -> str:
    """Explain which key is missing: suggest keys to rename to one of ``names``, or misspelled keys."""
    from tinker_records import find_closest

    others = {name: [f'"{other}"' for other in OTHER_NAMES[name] if other in line] for name in names if name not in line}
    found = {name: keys for name, keys in others.items() if keys}
    if "prompt" in found or "completion" in found:
        found = {name: keys for name, keys in found.items() if name in ("prompt", "completion")}
    if found:
        renamed = [
            f'{"rename" if len(keys) == 1 else "join"} {" and ".join(keys)} {"to" if len(keys) == 1 else "into"} "{name}"'
            for name, keys in found.items()
        ]
        return f"{lacking}; got {', '.join(line)}: {' and '.join(renamed)}"
    meant = {name: find_closest(name, known) for name in line if name not in known}
    misspelled = [explain_typo(name, right) for name, right in meant.items() if right not in (None, *line)]
    if len(line) == 1 and lacking.startswith(f'"{next(iter(line))}" needs'):
        return "; ".join(misspelled) or lacking
    return "; ".join(misspelled) or f"{lacking}; got {', '.join(line) or 'nothing'}"


def explain_typo(name: str, meant: str | None) -> str:
    """Explain that a key is unknown, and which one is meant."""
    return f'unknown key "{name}"; did you mean "{meant}"?'
