"""Many prompts from a file, with an answer on each line of another: written as they come, and resumed where they ended."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from tinker.cli.errors import CommandFailed
from tinker.cli.jsonl import read_records

if TYPE_CHECKING:
    from tinker.cli.output import Advance
    from tinker.futures import APIFuture
    from tinker.types import SampledSequence, SampleResponse

#: Requests in flight at once.
AHEAD = 64
Ask: TypeAlias = "Callable[[PromptLine], APIFuture[SampleResponse]]"
Read: TypeAlias = "Callable[[SampledSequence], str]"


class PromptLine(NamedTuple):
    """A line of the file: its number from 0, its prompt, and all that it holds."""

    number: int
    prompt: str | list[object]
    value: dict[str, Any]


def read_prompt_lines(file: Path) -> list[PromptLine]:
    """Read lines: ``{"prompt": text or token ids}`` or ``{"messages": [...]}``. CommandFailed names a line that is none."""
    found: list[PromptLine] = []
    for number, record in read_records(file):
        try:
            found.append(PromptLine(len(found), _check_prompt(record), record))
        except ValueError as error:
            raise CommandFailed(f"{file}, line {number}: {error}") from None
    if not found:
        raise CommandFailed(f"{file} has no prompts")
    return found


def _check_prompt(record: dict[str, Any]) -> str | list[object]:
    """Return the prompt of a line, a text, the ids of tokens or messages. ValueError for none."""
    from tinker.cli.examples import check_messages, check_token_ids, explain_prompt_keys

    name = next((name for name in ("prompt", "messages") if name in record), None)
    if name is None:
        raise ValueError(explain_prompt_keys(record))
    value: object = record[name]
    if not value:
        raise ValueError(f'"{name}" is empty')
    if name == "messages" or (isinstance(value, list) and isinstance(cast("list[object]", value)[0], dict)):
        check_messages(record[name])
    elif not isinstance(value, str):
        check_token_ids(record[name], '"prompt" must be text or a list of integers from 0')
    return cast("str | list[object]", value)


def drop_answered(lines: list[PromptLine], out: Path) -> list[PromptLine]:
    """Return the lines that have no answer in ``out`` yet, and remove a last answer that was cut off while it was written.

    CommandFailed where an answer is to another prompt.
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
    """Ask for the answers, some ahead, and append each to ``out`` at once, in order."""
    with out.open("a", encoding="utf-8") as stream:
        for line, response in _answers(lines, ask):
            samples = [
                {"text": read(one), "tokens": list(one.tokens), "stop_reason": one.stop_reason} for one in response.sequences
            ]
            answer = {"index": line.number, "prompt": line.prompt, "samples": samples}
            rest = {name: value for name, value in line.value.items() if name not in answer}
            stream.write(json.dumps({**answer, **rest}, ensure_ascii=False) + "\n")
            stream.flush()
            done += 1
            advance(done)


def _answers(lines: list[PromptLine], ask: Ask) -> Iterator[tuple[PromptLine, SampleResponse]]:
    ahead: deque[tuple[PromptLine, APIFuture[SampleResponse]]] = deque()
    waiting = iter(lines)
    while True:
        for line in waiting:
            ahead.append((line, ask(line)))
            if len(ahead) >= AHEAD:
                break
        if not ahead:
            return
        line, future = ahead.popleft()
        yield line, future.result()
