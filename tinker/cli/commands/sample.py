"""``tinker sample``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import click

from tinker.cli.batches import PromptLine, drop_answered, read_prompt_lines, write_answers
from tinker.cli.errors import CommandFailed
from tinker.cli.models import explain_refusal, first_sampleable
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.stops import read_stops

if TYPE_CHECKING:
    from tinker.futures import APIFuture
    from tinker.types import SampledSequence, SampleResponse


#: Text, or token ids.
_Prompt: TypeAlias = str | list[int]


class _SampledText(NamedTuple):
    prompt: _Prompt
    text: str
    sequence: SampledSequence


@click.command()
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option("-m", "--model", metavar="NAME_OR_PATH", help="A base model or checkpoint. Default: the first model.")
@click.option(
    "-n", "--num-samples", type=click.IntRange(min=1), default=1, show_default=True, help="Number of samples per prompt."
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Maximum number of tokens to generate."
)
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Sampling temperature; 0 is greedy."
)
@click.option("--top-k", type=click.IntRange(min=-1), default=-1, help="Keep only the k most likely tokens. Default: all.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1),
    default=1.0,
    help="Nucleus sampling: keep the most likely tokens with this total probability.",
)
@click.option(
    "--stop", multiple=True, metavar="TEXT", help="Stop before this text, instead of at the end-of-text token; may be repeated."
)
@click.option("--seed", type=int, help="Seed, for servers with reproducible sampling.")
@click.option(
    "--tokenizer",
    "tokenizer_id",
    metavar="NAME",
    help="Hugging Face name or folder of the tokenizer. Default: the model's own.",
)
@click.option("--chat", is_flag=True, help="Format the prompt as a user message with the model's chat template.")
@click.option(
    "--prompt-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read the prompt from a file. A .json file may have several, each a text or a list of token ids.",
)
@click.option(
    "-o",
    "--output",
    "--out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Save the samples as JSON in this file. With --file, append each answer as it arrives; lines answered there are "
    "skipped.",
)
@click.option(
    "--file",
    "prompt_lines",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PROMPTS.jsonl",
    help="Sample for each line, which has `prompt` or `messages`; needs --output.",
)
@pass_options
def sample(
    options: GlobalOptions,
    prompts: tuple[str, ...],
    model: str | None,
    num_samples: int,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    stop: tuple[str, ...],
    seed: int | None,
    tokenizer_id: str | None,
    chat: bool,
    prompt_file: Path | None,
    output: Path | None,
    prompt_lines: Path | None,
) -> None:
    """Sample continuations of each PROMPT, all at once. Without a PROMPT, read one from standard input.

    A newline at the end of the standard input or of --prompt-file is not part of the prompt.

    This uses the model's tokenizer. Most of them, and --chat, need transformers: pip install transformers. With --file,
    if interrupted, run the same command again to continue.

    In --stop, \\n is a newline, \\t a tab and \\\\ a backslash.
    """
    from tinker.cli.clients import rest_client, service_client
    from tinker.cli.examples import TextDecoder
    from tinker.cli.output import format_count, progress, show
    from tinker.cli.tokenizers import find_tokenizer
    from tinker.types import SamplingParams

    if output is not None and not output.parent.is_dir():
        raise CommandFailed(f"There is no folder {output.parent}")
    if prompt_lines is not None and (output is None or prompts or prompt_file):
        raise click.UsageError("--file needs --output, and no other prompts.")
    lines = drop_answered(found := read_prompt_lines(prompt_lines), output) if prompt_lines and output else (found := [])
    asked: Sequence[_Prompt] = () if prompt_lines else _collect_prompts(prompts, prompt_file)
    model = model or first_sampleable(rest_client(options).get_server_capabilities().result().supported_models)
    stops = read_stops(stop) or None
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop=stops, seed=seed)
    with ExitStack() as stack:
        service = stack.enter_context(service_client(options))
        path, base = (model, None) if model.startswith("tinker://") else (None, model)
        with explain_refusal(service, model):
            sampler = service.create_sampling_client(model_path=path, base_model=base).result()
        advance = stack.enter_context(progress(options, f"Sampling {model}", len(asked) or len(found)))
        tokenizer = find_tokenizer(sampler, tokenizer_id)
        decoder = TextDecoder(tokenizer, skip_special=stops is not None)
        if prompt_lines is not None and output is not None:

            def ask(line: PromptLine) -> APIFuture[SampleResponse]:
                return sampler.sample(_encode(tokenizer, line.prompt, chat=chat), num_samples, params)

            write_answers(lines, output, ask, lambda one: decoder.decode(one.tokens), advance, len(found) - len(lines))
            saved = {"out": str(output), "answers": len(found), "new": len(lines)}
            show(
                options,
                saved,
                lambda: click.echo(f"{format_count(len(found), 'answer')} in {output}, {len(lines)} of them new"),
            )
            return
        futures = [sampler.sample(_encode(tokenizer, prompt, chat=chat), num_samples, params) for prompt in asked]
        samples: list[_SampledText] = []
        for count, (prompt, future) in enumerate(zip(asked, futures), start=1):
            samples += [
                _SampledText(prompt, decoder.decode(sequence.tokens), sequence) for sequence in future.result().sequences
            ]
            advance(count)
    _show(options, model, samples, output)


def _collect_prompts(prompts: tuple[str, ...], file: Path | None) -> Sequence[_Prompt]:
    if file is None:
        return prompts or _read_pipe()
    if prompts:
        raise click.UsageError("Give a PROMPT or --prompt-file, not both.")
    text = file.read_text(encoding="utf-8-sig")
    found = _parse_prompts(file, text) if file.suffix == ".json" else [_without_last_newline(text)]
    if not found or not all(found):
        raise CommandFailed(f"{file}: a prompt is empty")
    return found


def _parse_prompts(file: Path, text: str) -> list[_Prompt]:
    """Return one prompt or several: a text, a list of ids, or a list of such."""
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise CommandFailed(f"{file} is not JSON: {error}") from None
    is_several = isinstance(value, list) and not any(type(item) in (int, float) for item in cast("list[object]", value))
    listed = cast("list[object]", value if is_several else [value])
    for index, prompt in enumerate(listed):
        _check_prompt(file, index, prompt)
    return cast("list[_Prompt]", listed)


def _check_prompt(file: Path, index: int, prompt: object) -> None:
    from tinker.cli.examples import check_token_ids

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
    text = _without_last_newline(sys.stdin.read())
    if not text:
        raise click.UsageError("The standard input is empty. Give a PROMPT, pipe one in, or use --prompt-file or --file.")
    return (text,)


def _without_last_newline(text: str) -> str:
    """Return a text without the newline that `echo` and editors put at its end."""
    return text.removesuffix("\n")


def _encode(tokenizer: Any, text: Any, *, chat: bool) -> Any:
    """Return a prompt as tokens: a text, token ids, or the messages of a chat."""
    from tinker.cli.examples import PROMPT_ADVICE, chat_tokens
    from tinker.types import ModelInput

    if not isinstance(text, str) and isinstance(text[0], dict):
        return ModelInput.from_ints(chat_tokens(tokenizer, text, prompt=True, advice=PROMPT_ADVICE))
    if not isinstance(text, str):
        return ModelInput.from_ints(text)
    if chat:
        messages = [{"role": "user", "content": text}]
        return ModelInput.from_ints(chat_tokens(tokenizer, messages, prompt=True, advice="Leave --chat out."))
    return ModelInput.from_ints(tokenizer.encode(text))


def _show(options: GlobalOptions, model: str, samples: Sequence[_SampledText], output: Path | None) -> None:
    from tinker.cli.output import format_count, show

    records = [
        {
            "prompt": sample.prompt,
            "text": sample.text,
            "tokens": sample.sequence.tokens,
            "stop_reason": sample.sequence.stop_reason,
        }
        for sample in samples
    ]

    def text() -> None:
        for number, sample in enumerate(samples):
            if len(samples) > 1:
                click.echo(f"{'' if number == 0 else chr(10)}--- {sample.prompt!r}")
            click.echo(sample.text)

    value = {"model": model, "samples": records}
    if output is None:
        show(options, value, text)
        return
    output.write_text(json.dumps(value, indent=2) + "\n")
    saved = {"output": str(output), "samples": len(records)}
    show(options, saved, lambda: click.echo(f"Saved {format_count(len(records), 'sample')} to {output}"))
