"""Many prompts from a file, with an answer on each line of another: written as they come, and resumed where they ended."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from tinker.cli.errors import CommandFailed

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
    from tinker.cli.examples import parse_line

    found: list[PromptLine] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value: Any = parse_line(line)
        except ValueError as error:
            raise CommandFailed(f"{file}, line {number}: {error}") from None
        record = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        prompt: Any = record.get("prompt", record.get("messages"))
        if not prompt or not isinstance(prompt, (str, list)):
            raise CommandFailed(f'{file}, line {number}: a line is an object with "prompt" or "messages"')
        found.append(PromptLine(len(found), prompt, record))
    if not found:
        raise CommandFailed(f"{file} has no prompts")
    return found


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
