"""Files of JSON Lines that users give: the object of each line, and what is said of a file that is something else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tinker.cli.errors import CommandFailed

_EXPECTED = 'Expected JSON Lines: one object a line, such as {"prompt": "2 + 2 =", "completion": " 4"}'
_TABLE_SUFFIXES = (".csv", ".tsv")


def read_records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line, from 1, and its object; blank lines are left out, and so is a byte order mark.

    CommandFailed names the line that is no object, and what a file is that has no lines of JSON.
    """
    with file.open(encoding="utf-8-sig") as lines:
        is_first = True
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    if is_first:
                        _check_form(file, line.strip())
                    is_first = False
                    yield number, _parse(file, number, line.rstrip("\r\n"))
        except UnicodeDecodeError:
            raise CommandFailed(f"{file} is not text in UTF-8", _EXPECTED) from None


def _parse(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value: object = json.loads(line)
    except json.JSONDecodeError as error:
        raise CommandFailed(f"{file}, line {number}: not JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(value, dict):
        raise CommandFailed(f"{file}, line {number}: a line is an object, {{...}}")
    return cast("dict[str, Any]", value)


def _check_form(file: Path, first: str) -> None:
    """CommandFailed where the first line shows that the file is an array, an object over several lines, or a table."""
    if first.startswith("["):
        raise CommandFailed(f"{file} is a JSON array", _EXPECTED)
    if first == "{":
        raise CommandFailed(f"{file} has an object over several lines", _EXPECTED)
    if file.suffix.lower() in _TABLE_SUFFIXES or _is_header(first):
        raise CommandFailed(f"{file} is a table (CSV), not JSON Lines", _EXPECTED)


def _is_header(line: str) -> bool:
    """Return whether a line looks like the names of columns."""
    names = [name.strip(' "') for name in line.replace("\t", ",").replace(";", ",").split(",")]
    return len(names) > 1 and all(name.replace(" ", "_").isidentifier() for name in names)
