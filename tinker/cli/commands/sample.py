"""``tinker sample``."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
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
from tinker.cli.reading import Prompt, check_prompt, check_token_ids, read_numbered

#: Requests in flight at once.
_AHEAD = 64
_Ask: TypeAlias = "Callable[[Prompt, _PromptLine], tinker.APIFuture[tinker.SampleResponse]]"
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
    num_samples: Annotated[Positive, Option("Number of samples per prompt.", "-n", "--num-samples")] = 1,
    max_tokens: Annotated[Positive, Option("Maximum number of tokens to generate.")] = 128,
    temperature: Annotated[NonNegative, Option("Sampling temperature; 0 is greedy.")] = 1.0,
    top_k: Annotated[
        int, click.IntRange(min=-1), Option("Keep only the k most likely tokens. Default: all.", show_default=False)
    ] = -1,
    top_p: Annotated[
        float,
        click.FloatRange(0, 1),
        Option("Nucleus sampling: keep the most likely tokens with this total probability.", show_default=False),
    ] = 1.0,
    stop: Annotated[
        tuple[str, ...], Option("Stop before this text, instead of at the end-of-text token; may be repeated.", metavar="TEXT")
    ] = (),
    seed: Annotated[int | None, Option("Seed, for servers with reproducible sampling.")] = None,
    tokenizer_id: TokenizerOption = None,
    chat_template_kwargs: ChatOptions = None,
    chat: Annotated[bool, Option("Format the prompt as a user message with the model's chat template.")] = False,
    prompt_file: Annotated[
        GivenFile | None,
        Option("Read the prompt from a file. A .json file may have several, each a text or a list of token ids."),
    ] = None,
    output: Annotated[
        NewFile | None,
        Option(
            "Save the samples as JSON in this file. With --file, append each answer as it arrives; lines answered there are "
            "skipped.",
            "-o",
            "--output",
            "--out",
        ),
    ] = None,
    prompt_lines: Annotated[
        GivenFile | None,
        Option("Sample for each line, which has `prompt` or `messages`; needs --output.", "--file", metavar="PROMPTS.jsonl"),
    ] = None,
) -> None:
    """Sample continuations of each PROMPT, all at once. Without a PROMPT, read one from standard input.

    A newline at the end of the standard input or of --prompt-file is not part of the prompt.

    This uses the model's tokenizer. Most of them, and --chat, need transformers: pip install transformers. With --file,
    if interrupted, run the same command again to continue.

    In --stop, \\n is a newline, \\t a tab and \\\\ a backslash.
    """
    if output is not None and not output.parent.is_dir():
        raise CommandFailed(f"There is no folder {output.parent}")
    if prompt_lines is not None and (output is None or prompt or prompt_file):
        raise click.UsageError("--file needs --output, and no other prompts.")
    lines = [] if prompt_lines is None else _read_prompt_lines(prompt_lines)
    unanswered = _drop_answered(lines, output) if output is not None and lines else []
    prompts: Sequence[Prompt] = () if lines else _collect_prompts(prompt, prompt_file)
    model = model or first_sampleable(rest_client(options).get_server_capabilities().result().supported_models)
    stops, chat_options = read_stops(stop) or None, read_options(chat_template_kwargs)
    params = tinker.SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop=stops, seed=seed
    )
    with ExitStack() as stack:
        service = stack.enter_context(service_client(options))
        sampler = create_sampler(service, model)
        advance = stack.enter_context(progress(options, f"Sampling {model}", len(prompts) or len(lines)))
        tokenizer = find_tokenizer(sampler, tokenizer_id)
        decoder = TextDecoder(tokenizer, skip_special=stops is not None)

        def ask(prompt: Prompt, line: _PromptLine | None = None) -> tinker.APIFuture[tinker.SampleResponse]:
            is_chat = chat and isinstance(prompt, str)
            asked: Prompt = [{"role": "user", "content": prompt}] if is_chat else prompt
            try:
                tokens = encode_prompt(tokenizer, asked, line and line.record, chat_options)
            except ValueError as error:
                raise ValueError(f"{prompt_lines}, line {line.place}: {error}" if line else str(error)) from error
            return sampler.sample(tinker.ModelInput.from_ints(tokens), num_samples, params)

        def read(sample: tinker.SampledSequence) -> dict[str, Any]:
            text = decoder.decode(sample.tokens)
            return {"text": text, "tokens": list(sample.tokens), "stop_reason": sample.stop_reason}

        if output is not None and lines:
            _write_answers(unanswered, output, ask, read, advance, len(lines) - len(unanswered))
        samples: list[dict[str, Any]] = []
        futures = list(map(ask, prompts))
        for count, (asked, future) in enumerate(zip(prompts, futures), start=1):
            samples += [{"prompt": asked, **read(one)} for one in future.result().sequences]
            advance(count)
    if output is not None and lines:
        text = f"{format_count(len(lines), 'answer')} in {output}, {len(unanswered)} of them new"
        show(options, {"out": str(output), "answers": len(lines), "new": len(unanswered)}, lambda: click.echo(text))
        return
    value = {"model": model, "samples": samples}
    if output is None:
        show(options, value, lambda: _print_samples(samples, num_samples, chat))
        return
    output.write_text(format_json(value) + "\n")
    text = f"Saved {format_count(len(samples), 'sample')} to {output}"
    show(options, {"output": str(output), "samples": len(samples)}, lambda: click.echo(text))


def _print_samples(samples: Sequence[dict[str, Any]], per_prompt: int, is_chat: bool) -> None:
    for number, sample in enumerate(samples):
        if len(samples) > 1:
            label = f" ({number % per_prompt + 1} of {per_prompt})" if per_prompt > 1 else ""
            click.echo(f"{'' if number == 0 else chr(10)}--- {sample['prompt']!r}{label}")
        write_data(f"{sample['text']}\n")
    if any(not one["text"] and one["stop_reason"] == "stop" and len(one["tokens"]) <= 1 for one in samples):
        advice = "" if is_chat else " If the model was trained on messages, add --chat."
        say(f"An empty answer ended at its first token.{advice}")


def _collect_prompts(prompts: tuple[str, ...], file: Path | None) -> Sequence[Prompt]:
    if file is None:
        return prompts or _read_pipe()
    if prompts:
        raise click.UsageError("Give a PROMPT or --prompt-file, not both.")
    text = file.read_text(encoding="utf-8-sig")
    found = _parse_prompts(file, text) if file.suffix == ".json" else [text.removesuffix("\n")]
    if not found or not all(found):
        raise CommandFailed(f"{file}: a prompt is empty")
    return found


def _parse_prompts(file: Path, text: str) -> list[Prompt]:
    """Return one prompt or several: a text, a list of ids, or a list of such."""
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise CommandFailed(f"{file} is not JSON: {error}") from None
    is_several = isinstance(value, list) and not any(type(item) in (int, float) for item in cast("list[object]", value))
    listed = cast("list[object]", value if is_several else [value])
    for index, prompt in enumerate(listed):
        _check_prompt(file, index, prompt)
    return cast("list[Prompt]", listed)


def _check_prompt(file: Path, index: int, prompt: object) -> None:
    if not isinstance(prompt, (str, list)):
        advice = ["A file with an object on each line is read by --file."] if isinstance(prompt, dict) else []
        raise CommandFailed(f"{file}: prompt {index} is neither text nor a list of token ids", *advice)
    try:
        if not isinstance(prompt, str):
            check_token_ids(cast("object", prompt), "the ids of tokens are integers from 0")
    except ValueError as error:
        raise CommandFailed(f"{file}: prompt {index}: {error}") from None


def _read_pipe() -> Sequence[str]:
    if sys.stdin.isatty():
        raise click.UsageError("Give a PROMPT, pipe one in, or use --prompt-file or --file.")
    text = sys.stdin.read().removesuffix("\n")  # which `echo` and editors put at the end
    if not text:
        raise click.UsageError("The standard input is empty. Give a PROMPT, pipe one in, or use --prompt-file or --file.")
    return (text,)


# Answers to a file of prompts, appended to a file as they arrive, so that a second run continues


class _PromptLine(NamedTuple):
    """A line of the file: its number among the prompts, from 0, and in the file, its prompt, and the whole record."""

    number: int
    place: int
    prompt: Prompt
    record: dict[str, Any]


def _read_prompt_lines(file: Path) -> list[_PromptLine]:
    """Read the prompts. CommandFailed names a line without one."""
    rows = read_numbered(file, "prompts", lambda record: (check_prompt(record), record))
    note_answers(record for _, (_, record) in rows)
    return [_PromptLine(number, place, *row) for number, (place, row) in enumerate(rows)]


def _drop_answered(lines: list[_PromptLine], out: Path) -> list[_PromptLine]:
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


def _write_answers(lines: list[_PromptLine], out: Path, ask: _Ask, read: _Read, advance: Advance, done: int) -> None:
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


def _answers(lines: list[_PromptLine], ask: _Ask) -> Iterator[tuple[_PromptLine, tinker.SampleResponse]]:
    ahead: deque[tuple[_PromptLine, tinker.APIFuture[tinker.SampleResponse]]] = deque()
    waiting = iter(lines)
    while True:
        for line in waiting:
            ahead.append((line, ask(line.prompt, line)))
            if len(ahead) >= _AHEAD:
                break
        if not ahead:
            return
        line, future = ahead.popleft()
        yield line, future.result()
