"""Answers to a file of prompts, appended to a file as they arrive, so that a second run continues."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import tinker
from tinker.cli.errors import CommandFailed
from tinker.cli.output import Advance
from tinker.cli.reading import Prompt, check_prompt, read_rows

#: Requests in flight at once.
AHEAD = 64
Ask: TypeAlias = "Callable[[Prompt], tinker.APIFuture[tinker.SampleResponse]]"
Read: TypeAlias = "Callable[[tinker.SampledSequence], dict[str, Any]]"


class PromptLine(NamedTuple):
    """A line of the file: its number from 0, its prompt, and the whole record."""

    number: int
    prompt: Prompt
    record: dict[str, Any]


def read_prompt_lines(file: Path) -> list[PromptLine]:
    """Read the prompts. CommandFailed names a line without one."""
    rows = read_rows(file, "prompts", lambda record: (check_prompt(record), record))
    return [PromptLine(number, prompt, record) for number, (prompt, record) in enumerate(rows)]


def drop_answered(lines: list[PromptLine], out: Path) -> list[PromptLine]:
    """Return the lines without an answer in ``out``. A last answer that is incomplete is removed.

    CommandFailed if an answer belongs to another prompt.
    """
    if not out.exists():
        return lines
    written = out.read_text(encoding="utf-8").splitlines(keepends=True)
    if written and not written[-1].endswith("\n"):
        out.write_text("".join(written[:-1]), encoding="utf-8")
        written.pop()
    answered: set[int] = set()
    for line in written:
        answer = _read_answer(out, line)
        index: int = answer["index"]
        if index >= len(lines) or answer["prompt"] != lines[index].prompt:
            raise CommandFailed(f"{out} has answers to other prompts", "Give another --out, or remove the file.")
        answered.add(index)
    return [line for line in lines if line.number not in answered]


def _read_answer(out: Path, line: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(line)
        return {"index": int(answer["index"]), "prompt": answer["prompt"]}
    except (ValueError, KeyError, TypeError):
        raise CommandFailed(f"{out} does not contain answers of this command", "Give another --out.") from None


def write_answers(lines: list[PromptLine], out: Path, ask: Ask, read: Read, advance: Advance, done: int) -> None:
    """Sample the answers, with several requests in flight, and append them to ``out`` in order."""
    with out.open("a", encoding="utf-8") as stream:
        for line, response in _answers(lines, ask):
            samples = list(map(read, response.sequences))
            answer = {"index": line.number, "prompt": line.prompt, "samples": samples}
            rest = {name: value for name, value in line.record.items() if name not in answer}
            stream.write(json.dumps({**answer, **rest}, ensure_ascii=False) + "\n")
            stream.flush()
            done += 1
            advance(done)


def _answers(lines: list[PromptLine], ask: Ask) -> Iterator[tuple[PromptLine, tinker.SampleResponse]]:
    ahead: deque[tuple[PromptLine, tinker.APIFuture[tinker.SampleResponse]]] = deque()
    waiting = iter(lines)
    while True:
        for line in waiting:
            ahead.append((line, ask(line.prompt)))
            if len(ahead) >= AHEAD:
                break
        if not ahead:
            return
        line, future = ahead.popleft()
        yield line, future.result()
