"""Reading of JSON Lines files and of times, the checks of keys, and suggestions for wrong words."""

from __future__ import annotations

import codecs
import datetime
import difflib
import io
import json
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import click

from tinker._chat import read_messages
from tinker.cli.output import CommandFailed, say_once


@cache
def read_hints() -> dict[str, Any]:
    """Return the tables of `hints.toml`."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("hints.toml").read_text(encoding="utf-8"))


def suggest(name: str, known: Collection[str]) -> str:
    """Return a hint about an unknown command or option: what is meant by it among the known ones.
    Empty without an idea.
    """
    plain, hints = name.replace("_", "-"), read_hints()  # TRL spells its options with underscores
    close = [one for one, others in hints["others"].items() if plain in others and one in known]
    explanation = next((one["text"] for one in hints["explained"] if plain in one["names"]), None)
    if not close and explanation is not None:
        return str(explanation)
    from tinker_records import ABSENT, LIKENESS

    if not close and (why := ABSENT.get(plain.strip("-").replace("-", "_"))):
        return f"{why[0].upper()}{why[1:]}."
    close = close or difflib.get_close_matches(
        plain, known, 2, LIKENESS if plain.startswith("-") else 0.6
    )
    return f"Did you mean {' or '.join(close)}?" if close else ""


Row = TypeVar("Row")
#: A text, the ids of its tokens, or the messages of a chat.
Prompt: TypeAlias = str | list[Any]

#: What a dash means. Messages show the name; only this very object is meant.
STANDARD_INPUT = Path("standard input")
_EXPECTED = (
    'Expected JSON Lines: one object a line, such as {"prompt": "2 + 2 =", "completion": " 4"}'
)
#: How files begin that are not text in UTF-8.
_BEGINNINGS = {
    b"\x1f\x8b": "compressed (gzip): unpack it",
    b"(\xb5/\xfd": "compressed (zstd): unpack it",
    b"PK\3\4": "compressed (ZIP): unpack it",
    **dict.fromkeys(
        (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"{\0", b"\0{"),
        "text in UTF-16: save it as UTF-8",
    ),
}
_OWN_KEYS = {
    "prompt",
    "completion",
    "answer",
    "response",
    "messages",
    "text",
    "tokens",
    "input_ids",
}
#: The data formats that are read as messages, by the key that tells them.
_FORMATS = {
    "conversations": (
        'ShareGPT: "conversations" are messages, with "from" as the role and "value" as the content'
    ),
    "instruction": (
        'Alpaca: "instruction" and "input" are a message of the user, "output" is the answer'
    ),
}
#: The roles of messages, by those of ShareGPT.
_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "system": "system",
}


class RowError(ValueError):
    """An invalid line, with advice."""

    def __init__(self, message: str, *advice: str) -> None:
        super().__init__(message)
        self.advice = advice


def read_rows(file: Path, what: str, parse: Callable[[dict[str, Any]], Row]) -> list[Row]:
    """Read the rows of a file as :func:`read_numbered`, without their numbers."""
    return [row for _, row in read_numbered(file, what, parse)]


def read_numbered(
    file: Path, what: str, parse: Callable[[dict[str, Any]], Row]
) -> list[tuple[int, Row]]:
    """Read the rows of a file, one JSON object per line, and the number of each line from 1.

    Blank lines and byte order marks are skipped. CommandFailed names the line that is not an
    object, or for which ``parse`` raises ValueError, TypeError or KeyError. Other formats, such as
    CSV, are recognized. A format that :func:`normalize_line` converts is said once in a command.
    """
    rows: list[tuple[int, Row]] = []
    with open_data(file) as lines:
        for number, line in enumerate(lines, start=1):
            if not (text := line.removeprefix(codecs.BOM_UTF8).strip()):
                continue
            if not rows:
                _check_form(file, text)
            record = parse_line(file, number, line, _EXPECTED)
            try:
                rows.append((number, parse(record)))
            except (ValueError, TypeError, KeyError) as error:
                raise CommandFailed(
                    f"{file}, line {number}: {error}", *getattr(error, "advice", ())
                ) from error
            if key := _find_format(record):
                say_once(f"{file} is read as {_FORMATS[key]}")
    if not rows:
        raise CommandFailed(f"{file} has no {what}")
    return rows


def open_data(file: Path) -> io.BufferedReader | io.BytesIO:
    """Open a file, or what standard input holds, which is kept for the command because it is read
    several times.
    """
    if file is not STANDARD_INPUT:
        return file.open("rb")
    kept = click.get_current_context().meta
    if "tinker.standard_input" not in kept:
        kept["tinker.standard_input"] = sys.stdin.buffer.read()
    return io.BytesIO(kept["tinker.standard_input"])


def decode(name: object, data: bytes, line: int, *advice: str) -> str:
    """Decode the text of a file, or what begins at a line of it. A byte order mark is left out.

    CommandFailed names the file and the line that is not UTF-8.
    """
    form = next(
        (_BEGINNINGS[begin] for begin in _BEGINNINGS if line == 1 and data.startswith(begin)), None
    )
    if form is not None:
        raise CommandFailed(f"{name} is {form}", *advice)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        raise CommandFailed(
            f"{name}, line {line}: not text in UTF-8: byte 0x{data[error.start]:02x}", *advice
        ) from None


def read_text(file: Path, *advice: str) -> str:
    """Return the text of a file or of standard input. CommandFailed as of :func:`decode`."""
    with open_data(file) as data:
        return decode(file, data.read(), 1, *advice).replace("\r\n", "\n")


def parse_json(name: object, data: bytes, line: int | None, *advice: str) -> object:
    """Return the value of a line of a file, or with ``line`` None of all of it. CommandFailed names
    the file and the line.
    """
    text = decode(name, data, line or 1, *advice).rstrip("\r\n")
    where = str(name) if line is None else f"{name}, line {line}"
    try:
        value: object = json.loads(text)
        if "\\ud" in text.lower():  # perhaps half of a surrogate pair, which is no text
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        where, problem = (
            f"{name}, line {line or error.lineno}",
            f"not JSON: {error.msg} (column {error.colno})",
        )
    except UnicodeEncodeError as error:
        before, half = (
            error.object[max(0, error.start - 20) : error.start],
            error.object[error.start],
        )
        problem = f"half of a character, {ascii(half)[1:-1]}, behind {before!r}"
    except RecursionError:
        problem = "not JSON: too many brackets in each other"
    except ValueError:
        problem = f"not JSON: a number of more than {sys.get_int_max_str_digits():,} digits"
    raise CommandFailed(f"{where}: {problem}", *advice)


def parse_line(file: Path, number: int, line: bytes, *advice: str) -> dict[str, Any]:
    """Return the object of a line, which ends with a newline and nothing else. CommandFailed as of
    :func:`parse_json`.
    """
    value = parse_json(file, line, number, *advice)
    if not isinstance(value, dict):
        raise CommandFailed(f"{file}, line {number}: a line is an object, {{...}}", *advice)
    return cast("dict[str, Any]", value)


def _check_form(file: Path, first: bytes) -> None:
    """Raise CommandFailed if the first line is that of an array, of an object over several lines,
    of a table or of Parquet.
    """
    if first.startswith(b"PAR1"):
        loader, form = "parquet", "a Parquet file"
    elif first.startswith(b"["):
        loader, form = "json", "a JSON array"
    elif file.suffix.lower() in (".csv", ".tsv") or _is_header(first.decode("latin-1")):
        loader, form = "csv", "a table (CSV), not JSON Lines"
    elif first == b"{":
        raise CommandFailed(f"{file} has an object over several lines", _EXPECTED)
    else:
        return
    raise CommandFailed(f"{file} is {form}", explain_dataset(loader, file), _EXPECTED)


def explain_dataset(name: str, file: Path | None = None) -> str:
    """Explain how to write a dataset into a file, with its name and the file that it is in."""
    data_files = f', data_files="{file}"' if file else ""
    return (
        f'This writes JSON Lines: datasets.load_dataset("{name}"{data_files}, '
        'split="train").to_json("train.jsonl")'
    )


def _is_header(line: str) -> bool:
    """Return whether a line looks like the names of columns."""
    names = [name.strip(' "') for name in line.replace("\t", ",").replace(";", ",").split(",")]
    return len(names) > 1 and all(name.replace(" ", "_").isidentifier() for name in names)


def normalize_line(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line without the keys whose value is null. ShareGPT and Alpaca become messages;
    ValueError if they are wrong.
    """
    line = {name: _drop_nulls(value) for name, value in record.items() if value is not None}
    key = _find_format(line)
    if key is None:
        if line.get("system"):  # which other data sets have beside the prompt
            raise ValueError(
                '"system" is not read: make it the first of '
                '"messages", {"role": "system", "content": ...}'
            )
        return line
    turns: object = line.get(key) if key == "conversations" else _read_alpaca(line)
    if not isinstance(turns, list):
        raise ValueError(f'"{key}" must be a list of messages, got {type(turns).__name__}')
    system = {"role": "system", "content": line.pop("system", "")}
    messages = [
        _read_turn(position, turn) for position, turn in enumerate(cast("list[object]", turns))
    ]
    return {**line, "messages": [*([system] if system["content"] else []), *messages]}


def _find_format(line: dict[str, Any]) -> str | None:
    has_own = any(line.get(name) is not None for name in _OWN_KEYS)
    return next((key for key in _FORMATS if line.get(key) is not None and not has_own), None)


def _drop_nulls(value: object) -> Any:
    """Return a value whose objects, at any depth, have no keys that are null: libraries of tables
    write them.
    """
    if isinstance(value, dict):
        return {
            name: _drop_nulls(one)
            for name, one in cast("dict[str, Any]", value).items()
            if one is not None
        }
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return list(map(_drop_nulls, cast("list[object]", value)))
    return cast("Any", value)


def _read_alpaca(line: dict[str, Any]) -> list[dict[str, Any]]:
    if line.get("history"):
        raise ValueError('"history" is not read: make "messages" of it')
    texts = [line["instruction"], line.get("input", ""), line.get("output", "")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError('"instruction", "input" and "output" must be text')
    if texts[2] == "" and "output" in line:
        raise ValueError('"output" is empty')
    asked = {"role": "user", "content": "\n".join(filter(None, texts[:2]))}
    return [asked, {"role": "assistant", "content": texts[2]}] if texts[2] else [asked]


def _read_turn(position: int, turn: object) -> Any:
    """Return a message of ShareGPT as one with a role and a content; any other value as it is."""
    fields = dict(cast("dict[str, Any]", turn)) if isinstance(turn, dict) else {}
    if "from" not in fields:
        return cast("Any", turn)
    speaker = fields.pop("from")
    if (role := _ROLES.get(speaker)) is None:
        raise ValueError(
            f"message {position} is from {speaker!r:.40}; read are {', '.join(_ROLES)}"
        )
    return {"role": role, "content": fields.pop("value", None), **fields}


def check_prompt(record: dict[str, Any]) -> Prompt:
    """Return the prompt of a line: of ``{"prompt": text or token ids}`` or ``{"messages": [...]}``.
    ValueError for another.
    """
    record, names = normalize_line(record), ("prompt", "messages")
    name = next((name for name in names if name in record), None)
    if name is None:
        raise ValueError(
            explain_keys(record, 'a line is an object with "prompt" or "messages"', names, names)
        )
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
        if type(token) is not int or not 0 <= token < 1 << 31:
            raise ValueError(f"{rule}; at position {position} it has {json.dumps(token)[:40]}")


def explain_keys(
    line: dict[str, Any], lacking: str, names: Collection[str], known: Collection[str]
) -> str:
    """Explain which key is missing: suggest keys to rename to one of ``names``, or misspelled ones
    of the ``known``.
    """
    from tinker_records import find_closest

    if renames := _suggest_renames(line, names):
        return f"{lacking}; got {', '.join(line)}: {' and '.join(renames)}"
    meant = {name: find_closest(name, known) for name in line if name not in known}
    misspelled = [
        explain_typo(name, right) for name, right in meant.items() if right not in (None, *line)
    ]
    is_told = len(line) == 1 and lacking.startswith(f'"{next(iter(line))}" needs')
    got = "" if is_told else f"; got {', '.join(line) or 'nothing'}"
    return "; ".join(misspelled) or f"{lacking}{got}"


def _suggest_renames(line: dict[str, Any], names: Collection[str]) -> list[str]:
    """Suggest the keys to rename to one of ``names``: a prompt and its completion, else others."""
    keys = {
        name: " or ".join(f'"{other}"' for other in others if other in line)
        for name, others in read_hints()["keys"].items()
        if name in names and name not in line
    }
    found = {name: others for name, others in keys.items() if others}
    pair = {name: found[name] for name in found if name in ("prompt", "completion")}
    return [f'rename {others} to "{name}"' for name, others in (pair or found).items()]


def explain_typo(name: str, meant: str | None) -> str:
    """Explain that a key is unknown, and which one is meant."""
    return f'unknown key "{name}"; did you mean "{meant}"?'


_DAYS_AGO = {"today": 0, "yesterday": 1}


def parse_time(text: str) -> datetime.datetime:
    """Parse a date or time, of UTC without a zone, or ``today`` or ``yesterday`` (00:00 UTC);
    CommandFailed for others.
    """
    if text in _DAYS_AGO:
        now = datetime.datetime.now(datetime.UTC)
        return now.replace(hour=0, minute=0, second=0, microsecond=0) - datetime.timedelta(
            days=_DAYS_AGO[text]
        )
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(
            f'"{text}" is not a date: write it like 2026-01-31, 2026-01-31T08:00Z or yesterday'
        ) from None
    return with_zone(time)


def with_zone(time: datetime.datetime) -> datetime.datetime:
    """Return the time, of UTC if it has no zone."""
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
