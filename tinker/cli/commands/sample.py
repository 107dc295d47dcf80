"""``tinker sample``, ``chat`` and ``model``."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, cast

import click

import tinker
from tinker._chat import read_options
from tinker.cli import clients, output
from tinker.cli.clients import Capacity, StopCutter, TextDecoder
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
from tinker.cli.output import Advance, Columns, CommandFailed
from tinker.cli.reading import (
    STANDARD_INPUT,
    Prompt,
    check_prompt,
    decode,
    parse_json,
    parse_line,
    read_numbered,
    read_text,
)

if TYPE_CHECKING:
    from tinker_wire.models import SupportedModel

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
    target: Annotated[
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
    if prompt_lines is not None and (target is None or prompt or prompt_file):
        raise click.UsageError("--file needs --output, and no other prompts.")
    lines = [] if prompt_lines is None else _read_prompt_lines(prompt_lines)
    unanswered = _find_unanswered(lines, target) if target is not None and lines else []
    prompts: Sequence[Prompt] = () if lines else _collect_prompts(prompt, prompt_file)
    model = model or clients.first_sampleable(
        clients.rest_client(options).get_server_capabilities().result().supported_models
    )
    stops, chat_options = clients.read_stops(stop) or None, read_options(chat_template_kwargs)
    params = tinker.SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop=stops,
        seed=seed,
    )
    with ExitStack() as stack:
        service = stack.enter_context(clients.service_client(options))
        sampler = clients.create_sampler(service, model)
        advance = stack.enter_context(
            output.progress(options, f"Sampling {model}", len(prompts) or len(lines))
        )
        tokenizer = clients.find_tokenizer(sampler, tokenizer_id)
        decoder = TextDecoder(tokenizer, skip_special=stops is not None)

        def ask(line: _Line) -> tinker.APIFuture[tinker.SampleResponse]:
            is_chat = chat and isinstance(line.prompt, str)
            asked: Prompt = [{"role": "user", "content": line.prompt}] if is_chat else line.prompt
            try:
                tokens = clients.encode_prompt(tokenizer, asked, line.record, chat_options)
            except ValueError as error:
                raise CommandFailed(
                    f"{prompt_lines}, line {line.number}: {error}" if lines else str(error)
                ) from error
            return sampler.sample(tinker.ModelInput.from_ints(tokens), num_samples, params)

        def read(sample: tinker.SampledSequence) -> dict[str, Any]:
            text = decoder.decode(sample.tokens)
            return {"text": text, "tokens": list(sample.tokens), "stop_reason": sample.stop_reason}

        if target is not None and lines:
            _write_answers(lines, unanswered, target, ask, read, advance)
        samples: list[dict[str, Any]] = []
        futures = [ask(_Line(0, prompt, {})) for prompt in prompts]
        for count, (asked, future) in enumerate(zip(prompts, futures), start=1):
            samples += [{"prompt": asked, **read(one)} for one in future.result().sequences]
            advance(count)
    if target is not None and lines:
        answers = output.format_count(len(lines), "answer")
        text = f"{answers} in {target}, {len(unanswered)} of them new"
        output.show(
            options,
            {"out": str(target), "answers": len(lines), "new": len(unanswered)},
            lambda: click.echo(text),
        )
        return
    value = {"model": model, "samples": samples}
    if target is None:
        output.show(options, value, lambda: _print_samples(samples, num_samples, chat))
        return
    target.write_text(output.format_json(value) + "\n", encoding="utf-8")
    text = f"Saved {output.format_count(len(samples), 'sample')} to {target}"
    output.show(options, {"output": str(target), "samples": len(samples)}, lambda: click.echo(text))


def _print_samples(samples: Sequence[dict[str, Any]], per_prompt: int, is_chat: bool) -> None:
    for number, sample in enumerate(samples):
        if len(samples) > 1:
            label = f" ({number % per_prompt + 1} of {per_prompt})" if per_prompt > 1 else ""
            click.echo(f"{'' if number == 0 else chr(10)}--- {sample['prompt']!r}{label}")
        output.write_data(f"{sample['text']}\n")
    if any(
        not one["text"] and one["stop_reason"] == "stop" and len(one["tokens"]) <= 1
        for one in samples
    ):
        advice = "" if is_chat else " If the model was trained on messages, add --chat."
        output.say(f"An empty answer ended at its first token.{advice}")


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
    clients.note_answers(record for _, (_, record) in rows)
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


_YOUR_TURN = "\nUser:"
_HELP = """\
/system TEXT   set the system message; without a text, remove it
/model NAME    switch to another model or checkpoint
/save FILE     append the conversation to a file that `tinker train` reads
/reset         start over
/quit          quit, like Ctrl-D; Ctrl-C stops an answer"""
_ARGUMENTS = {"/save": "a file name", "/model": "the name of a model or a checkpoint"}


@command(
    'tinker chat --model Qwen/Qwen3-8B --system "Answer in one sentence."',
    "tinker chat --model tinker://RUN/sampler_weights/final",
    'echo "What is LoRA?" | tinker chat',
)
def chat(
    options: GlobalOptions,
    model: ModelOption = None,
    system: Annotated[str | None, Option("System message.", metavar="TEXT")] = None,
    max_tokens: Annotated[Positive, Option("Maximum number of tokens to generate.")] = 512,
    temperature: Annotated[NonNegative, Option("Sampling temperature; 0 is greedy.")] = 0.7,
    tokenizer_id: TokenizerOption = None,
    chat_template_kwargs: ChatOptions = None,
) -> None:
    """Chat with a model or a checkpoint. Answers are streamed.

    This uses the model's chat template; a model without one gets the conversation as plain text.
    Type /help for the commands /system, /model, /save, /reset and /quit. You can also pipe lines
    in, one per turn. With -f json each answer is a line: its role, content, tokens and stop_reason.
    """
    model = model or clients.first_sampleable(
        clients.rest_client(options).get_server_capabilities().result().supported_models
    )
    with clients.service_client(options, interactive=True) as service:
        params = tinker.SamplingParams(max_tokens=max_tokens, temperature=temperature)
        conversation = _ChatSession(
            service,
            model,
            system,
            params,
            tokenizer_id,
            read_options(chat_template_kwargs),
            as_json=options.format == "json",
        )
        output.say(f"{model}. /help lists the commands.")
        for line in _read_lines():
            if line.startswith("/"):
                if not conversation.run_command(*line.partition(" ")[::2]):
                    break
            elif line.strip():
                conversation.answer(line)


def _read_lines() -> Iterator[str]:
    """Yield each line. On a terminal a prompt is shown, lines can be edited, and
    Ctrl-C clears one.
    """
    if not sys.stdin.isatty():
        for number, line in enumerate(sys.stdin.buffer, start=1):
            yield decode(STANDARD_INPUT, line, number).rstrip("\r\n")
        return
    while True:
        try:
            yield input("> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            output.say("", "Ctrl-D quits")


class _StreamedAnswer:
    """An answer so far. Without a ``stop_reason`` it was interrupted."""

    def __init__(self) -> None:
        self.text = ""
        self.tokens: list[int] = []
        self.stop_reason: str | None = None


class _ChatSession:
    """A conversation. ``params`` and the context length of the model limit its answers."""

    def __init__(
        self,
        service: tinker.ServiceClient,
        model: str,
        system: str | None,
        params: tinker.SamplingParams,
        tokenizer_id: str | None,
        chat_options: Mapping[str, object],
        *,
        as_json: bool,
    ) -> None:
        self._service, self._system, self._params, self._tokenizer_id = (
            service,
            system,
            params,
            tokenizer_id,
        )
        self._chat_options, self._as_json = chat_options, as_json
        self._turns: list[dict[str, str]] = []
        self._open(model)

    def _open(self, model: str) -> None:
        """Switch to another model. After a TinkerError the model is unchanged."""
        sampler = clients.create_sampler(self._service, model)
        self._tokenizer = clients.find_tokenizer(sampler, self._tokenizer_id)
        self._decoder = TextDecoder(self._tokenizer)
        lengths = {
            one.model_name: one.max_context_length
            for one in self._service.get_server_capabilities().supported_models
        }
        base_model = sampler.get_base_model()
        self._capacity = Capacity(base_model, lengths.get(base_model))
        self._sampler = sampler

    def run_command(self, command: str, rest: str) -> bool:
        """Run a line that begins with a slash; return whether to continue."""
        rest = rest.strip()
        if command == "/quit":
            return False
        if command == "/system":
            self._system = rest or None
        elif command == "/reset":
            self._turns.clear()
        elif command == "/save" and rest:
            self._save(Path(rest))
        elif command == "/model" and rest:
            try:
                self._open(rest)
                output.say(f"now {rest}")
            except CommandFailed as failure:
                failure.show()
            except (tinker.TinkerError, ValueError, OSError) as error:
                output.to_failure(error).show()
        elif command in _ARGUMENTS:
            output.say(f"{command} needs {_ARGUMENTS[command]}")
        else:
            if command != "/help":
                output.say(f"unknown command {command}")
            output.say(*_HELP.splitlines())
        return True

    def _save(self, file: Path) -> None:
        try:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"messages": self._messages()}, ensure_ascii=False) + "\n")
            output.say(f"saved to {file}")
        except OSError as error:
            output.say(f"{error}")

    def answer(self, text: str) -> None:
        """Stream the answer to a turn. Ctrl-C stops it and keeps the text so far."""
        self._turns.append({"role": "user", "content": text})
        tokens = clients.encode_prompt(self._tokenizer, self._messages(), {}, self._chat_options)
        prompt, answer = tinker.ModelInput.from_ints(tokens), _StreamedAnswer()
        if self._capacity.is_exceeded(prompt.length + 1):
            self._turns.pop()
            output.say(
                f"the conversation has {prompt.length:,} tokens; "
                f"{self._capacity}; /reset starts over"
            )
            return
        try:
            for piece in self._stream(prompt, answer):
                answer.text += piece
                if not self._as_json:
                    output.write_data(piece)
        except KeyboardInterrupt:
            answer.stop_reason = None
            output.say(" [stopped]", end="")
        turn = {"role": "assistant", "content": answer.text.strip()}
        if self._as_json:
            output.show_json(
                {**turn, "tokens": answer.tokens, "stop_reason": answer.stop_reason}, indent=None
            )
        else:
            click.echo()
        self._turns.append(turn)

    def _stream(self, prompt: tinker.ModelInput, answer: _StreamedAnswer) -> Iterator[str]:
        """Yield the pieces of an answer, to its end or to the first stop, and note its tokens."""
        stops = self._stops()
        longest = self._params.max_tokens or 1
        if self._capacity.tokens:
            longest = min(longest, self._capacity.tokens - prompt.length)
        params = self._params.model_copy(update={"max_tokens": longest, "stop": stops or None})
        cutter = StopCutter(stops)
        with self._sampler.sample_stream(prompt, 1, params, tokenizer=self._decoder) as stream:
            for chunk in stream:
                answer.tokens += chunk.tokens
                answer.stop_reason = chunk.stop_reason
                yield cutter.add(chunk.text or "")
                if cutter.is_over:
                    answer.stop_reason = "stop"
                    return
        yield cutter.end()

    def _messages(self) -> list[dict[str, str]]:
        return [
            *([{"role": "system", "content": self._system}] if self._system else []),
            *self._turns,
        ]

    def _stops(self) -> list[str]:
        """Return the stop sequences of plain text: your next turn and the end of text. None with a
        chat template.
        """
        if clients.has_template(self._tokenizer):
            return []
        end: str | None = getattr(self._tokenizer, "eos_token", None)
        return [_YOUR_TURN, *([end] if end else [])]


_COLUMNS: Columns[SupportedModel] = [
    ("Model", lambda model: model.model_name),
    ("Max Context", lambda model: model.max_context_length),
    ("Trainable", lambda model: model.trainable),
    ("Sampleable", lambda model: model.sampleable),
]


@command("tinker model list")
def list_command(options: GlobalOptions, substring: str | None = None) -> None:
    """List the models that the server offers, or those whose name contains SUBSTRING
    (case-insensitive).

    Use the names in the column Model as base_model.
    """
    models = clients.rest_client(options).get_server_capabilities().result().supported_models
    if substring is not None:
        models = [
            entry for entry in models if substring.lower() in (entry.model_name or "").lower()
        ]
        if not models:
            problem = f"No model that you can use has {substring!r} in its name"
            raise CommandFailed(problem, "`tinker model list` shows them all.")
    output.show(options, {"models": models}, lambda: output.show_items(models, _COLUMNS))
