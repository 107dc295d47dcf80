"""``tinker sample``."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

import click

import tinker
from tinker._chat import read_options
from tinker.cli.clients import rest_client, service_client
from tinker.cli.errors import CommandFailed
from tinker.cli.model_input import (
    TextDecoder,
    create_sampler,
    encode_prompt,
    find_tokenizer,
    first_sampleable,
    note_answers,
    read_stops,
)
from tinker.cli.options import (
    ChatOptions,
    GivenFile,
    GlobalOptions,
    ModelOption,
    NewFile,
    NonNegative,
    Option,
    Positive,
    TokenizerOption,
    command,
)
from tinker.cli.output import Advance, format_count, format_json, progress, say, show, write_data
from tinker.cli.reading import (
    STANDARD_INPUT,
    Prompt,
    check_prompt,
    parse_json,
    parse_line,
    read_numbered,
    read_text,
)

#: Requests in flight at once.
_AHEAD = 64
_BEGIN = b'{"index": '  # of each answer
_Ask: TypeAlias = "Callable[[_Line], tinker.APIFuture[tinker.SampleResponse]]"
_Read: TypeAlias = "Callable[[tinker.SampledSequence], dict[str, Any]]"


@command(
    'tinker sample "Once upon a time" --num-samples 4 --temperature 0.7',
    'tinker sample --model tinker://RUN/sampler_weights/final "2 + 2 ="',
    "tinker sample --file prompts.jsonl --output answers.jsonl",
)
def sample(
    options: GlobalOptions,
    prompt: tuple[str, ...] = (),
    model: ModelOption = None,
    num_samples: Annotated[
        Positive, Option("Number of samples per prompt.", "-n", "--num-samples")
    ] = 1,
    max_tokens: Annotated[Positive, Option("Maximum number of tokens to generate.")] = 128,
    temperature: Annotated[NonNegative, Option("Sampling temperature; 0 is greedy.")] = 1.0,
    top_k: Annotated[
        int,
        click.IntRange(min=-1),
        Option("Keep only the k most likely tokens. Default: all.", show_default=False),
    ] = -1,
    top_p: Annotated[
        float,
        click.FloatRange(0, 1),
        Option(
            "Nucleus sampling: keep the most likely tokens with this total probability.",
            show_default=False,
        ),
    ] = 1.0,
    stop: Annotated[
        tuple[str, ...],
        Option(
            "Stop before this text, instead of at the end-of-text token; may be repeated.",
            metavar="TEXT",
        ),
    ] = (),
    seed: Annotated[int | None, Option("Seed, for servers with reproducible sampling.")] = None,
    tokenizer_id: TokenizerOption = None,
    chat_template_kwargs: ChatOptions = None,
    chat: Annotated[
        bool, Option("Format the prompt as a user message with the model's chat template.")
    ] = False,
    prompt_file: Annotated[
        GivenFile | None,
        Option(
            "Read the prompt from a file. A .json file may have several, each a text or "
            "a list of token ids."
        ),
    ] = None,
    output: Annotated[
        NewFile | None,
        Option(
            "Save the samples as JSON in this file. With --file, append each answer as it arrives; "
            "lines answered there are "
            "skipped.",
            "-o",
            "--output",
            "--out",
        ),
    ] = None,
    prompt_lines: Annotated[
        GivenFile | None,
        Option(
            "Sample for each line, which has `prompt` or `messages`; needs --output.",
            "--file",
            metavar="PROMPTS.jsonl",
        ),
    ] = None,
) -> None:
    """Sample continuations of each PROMPT, all at once. Without a PROMPT, read one from standard
    input.

    A newline at the end of the standard input or of --prompt-file is not part of the prompt.

    This uses the model's tokenizer. Most of them, and --chat, need transformers: pip install
    transformers. With --file, if interrupted, run the same command again to continue.

    In --stop, \\n is a newline, \\t a tab and \\\\ a backslash.
    """
    if prompt_lines is not None and (output is None or prompt or prompt_file):
        raise click.UsageError("--file needs --output, and no other prompts.")
    lines = [] if prompt_lines is None else _read_prompt_lines(prompt_lines)
    unanswered = _find_unanswered(lines, output) if output is not None and lines else []
    prompts: Sequence[Prompt] = () if lines else _collect_prompts(prompt, prompt_file)
    model = model or first_sampleable(
        rest_client(options).get_server_capabilities().result().supported_models
    )
    stops, chat_options = read_stops(stop) or None, read_options(chat_template_kwargs)
    params = tinker.SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stops,
        seed=seed,
    )
    with ExitStack() as stack:
        service = stack.enter_context(service_client(options))
        sampler = create_sampler(service, model)
        advance = stack.enter_context(
            progress(options, f"Sampling {model}", len(prompts) or len(lines))
        )
        tokenizer = find_tokenizer(sampler, tokenizer_id)
        decoder = TextDecoder(tokenizer, skip_special=stops is not None)

        def ask(line: _Line) -> tinker.APIFuture[tinker.SampleResponse]:
            is_chat = chat and isinstance(line.prompt, str)
            asked: Prompt = [{"role": "user", "content": line.prompt}] if is_chat else line.prompt
            try:
                tokens = encode_prompt(tokenizer, asked, line.record, chat_options)
            except ValueError as error:
                raise CommandFailed(
                    f"{prompt_lines}, line {line.number}: {error}" if lines else str(error)
                ) from error
            return sampler.sample(tinker.ModelInput.from_ints(tokens), num_samples, params)

        def read(sample: tinker.SampledSequence) -> dict[str, Any]:
            text = decoder.decode(sample.tokens)
            return {"text": text, "tokens": list(sample.tokens), "stop_reason": sample.stop_reason}

        if output is not None and lines:
            _write_answers(lines, unanswered, output, ask, read, advance)
        samples: list[dict[str, Any]] = []
        futures = [ask(_Line(0, prompt, {})) for prompt in prompts]
        for count, (asked, future) in enumerate(zip(prompts, futures), start=1):
            samples += [{"prompt": asked, **read(one)} for one in future.result().sequences]
            advance(count)
    if output is not None and lines:
        text = f"{format_count(len(lines), 'answer')} in {output}, {len(unanswered)} of them new"
        show(
            options,
            {"out": str(output), "answers": len(lines), "new": len(unanswered)},
            lambda: click.echo(text),
        )
        return
    value = {"model": model, "samples": samples}
    if output is None:
        show(options, value, lambda: _print_samples(samples, num_samples, chat))
        return
    output.write_text(format_json(value) + "\n", encoding="utf-8")
    text = f"Saved {format_count(len(samples), 'sample')} to {output}"
    show(options, {"output": str(output), "samples": len(samples)}, lambda: click.echo(text))


def _print_samples(samples: Sequence[dict[str, Any]], per_prompt: int, is_chat: bool) -> None:
    for number, sample in enumerate(samples):
        if len(samples) > 1:
            label = f" ({number % per_prompt + 1} of {per_prompt})" if per_prompt > 1 else ""
            click.echo(f"{'' if number == 0 else chr(10)}--- {sample['prompt']!r}{label}")
        write_data(f"{sample['text']}\n")
    if any(
        not one["text"] and one["stop_reason"] == "stop" and len(one["tokens"]) <= 1
        for one in samples
    ):
        advice = "" if is_chat else " If the model was trained on messages, add --chat."
        say(f"An empty answer ended at its first token.{advice}")


def _collect_prompts(prompts: tuple[str, ...], file: Path | None) -> Sequence[Prompt]:
    if file is None:
        return prompts or _read_pipe()
    if prompts:
        raise click.UsageError("Give a PROMPT or --prompt-file, not both.")
    found = _read_prompts(file) if file.suffix == ".json" else [read_text(file).removesuffix("\n")]
    if not found or not all(found):
        raise CommandFailed(f"{file}: a prompt is empty")
    return found


def _read_prompts(file: Path) -> list[Prompt]:
    """Return one prompt or several: a text, a list of ids, or a list of such."""
    value = parse_json(file, file.read_bytes(), None)
    if isinstance(value, dict):
        raise CommandFailed(
            f"{file} is not a prompt, or a list of such",
            "A file with an object on each line is read by --file.",
        )
    is_several = isinstance(value, list) and not any(
        type(item) in (int, float) for item in cast("list[object]", value)
    )
    found: list[Prompt] = []
    for prompt in cast("list[object]", value if is_several else [value]):
        try:
            found.append(check_prompt({"prompt": prompt}) if prompt else "")
        except ValueError as error:
            raise CommandFailed(f"{file}: prompt {len(found)}: {error}") from None
    return found


def _read_pipe() -> Sequence[str]:
    empty = "" if sys.stdin.isatty() else "The standard input is empty. "
    # which `echo` and editors put at the end
    text = empty and read_text(STANDARD_INPUT).removesuffix("\n")
    if not text:
        raise click.UsageError(
            f"{empty}Give a PROMPT, pipe one in, or use --prompt-file or --file."
        )
    return (text,)


# Answers to a file of prompts, appended to a file as they arrive, so that a second run continues


class _Line(NamedTuple):
    """A line of a file of prompts: its number, its prompt, and the whole record."""

    number: int
    prompt: Prompt
    record: dict[str, Any]


def _read_prompt_lines(file: Path) -> list[_Line]:
    """Read the prompts. CommandFailed names a line without one."""
    rows = read_numbered(file, "prompts", lambda record: (check_prompt(record), record))
    note_answers(record for _, (_, record) in rows)
    return [_Line(number, *row) for number, row in rows]


def _find_unanswered(lines: Sequence[_Line], out: Path) -> list[int]:
    """Return the lines, from 0, without an answer in ``out``. A last answer that is incomplete is
    removed.

    CommandFailed if a line is not the answer to one of the prompts.
    """
    if not out.exists():
        return list(range(len(lines)))
    *whole, rest = (data := out.read_bytes()).split(b"\n")
    other = f"{out} does not contain answers of this command: give another --out."
    answered: set[int] = set()
    asked = [json.dumps(line.prompt) for line in lines]  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    for number, line in enumerate(whole, start=1):
        answer = parse_line(out, number, line, other)
        index: Any = answer.get("index")
        if index not in range(len(lines)) or json.dumps(answer.get("prompt")) != asked[index]:
            raise CommandFailed(
                f"{out}, line {number}: not the answer to one of the prompts", other
            )
        answered.add(index)
    if rest[: len(_BEGIN)] != _BEGIN[: len(rest)]:
        raise CommandFailed(f"{out}, line {len(whole) + 1}: not an answer", other)
    os.truncate(out, len(data) - len(rest))
    return [number for number in range(len(lines)) if number not in answered]


def _write_answers(
    lines: Sequence[_Line],
    numbers: Sequence[int],
    out: Path,
    ask: _Ask,
    read: _Read,
    advance: Advance,
) -> None:
    """Sample the answers to the lines of these numbers, with several requests in flight, and append
    them to ``out``.
    """
    waiting, done = iter(numbers), len(lines) - len(numbers)
    with out.open("a", encoding="utf-8") as stream:
        ahead = deque((number, ask(lines[number])) for number in islice(waiting, _AHEAD))
        while ahead:
            number, future = ahead.popleft()
            _, prompt, record = lines[number]
            answer = {
                "index": number,
                "prompt": prompt,
                "samples": list(map(read, future.result().sequences)),
            }
            rest = {name: value for name, value in record.items() if name not in answer}
            stream.write(json.dumps({**answer, **rest}, ensure_ascii=False) + "\n")
            stream.flush()
            ahead.extend((number, ask(lines[number])) for number in islice(waiting, 1))
            done += 1
            advance(done)
