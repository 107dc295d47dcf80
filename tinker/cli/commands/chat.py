"""``tinker chat``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import click

import tinker
from tinker._chat import read_options
from tinker.cli.clients import rest_client, service_client
from tinker.cli.errors import CommandFailed, to_failure
from tinker.cli.model_input import (
    Capacity,
    StopCutter,
    TextDecoder,
    create_sampler,
    encode_prompt,
    find_tokenizer,
    first_sampleable,
    has_template,
)
from tinker.cli.options import (
    ChatOptions,
    GlobalOptions,
    ModelOption,
    NonNegative,
    Option,
    Positive,
    TokenizerOption,
    command,
)
from tinker.cli.output import say, show_json, write_data
from tinker.cli.reading import STANDARD_INPUT, decode

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
    model = model or first_sampleable(
        rest_client(options).get_server_capabilities().result().supported_models
    )
    with service_client(options, interactive=True) as service:
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
        say(f"{model}. /help lists the commands.")
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
            say("", "Ctrl-D quits")


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
        sampler = create_sampler(self._service, model)
        self._tokenizer = find_tokenizer(sampler, self._tokenizer_id)
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
                say(f"now {rest}")
            except CommandFailed as failure:
                failure.show()
            except (tinker.TinkerError, ValueError, OSError) as error:
                to_failure(error).show()
        elif command in _ARGUMENTS:
            say(f"{command} needs {_ARGUMENTS[command]}")
        else:
            if command != "/help":
                say(f"unknown command {command}")
            say(*_HELP.splitlines())
        return True

    def _save(self, file: Path) -> None:
        try:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"messages": self._messages()}, ensure_ascii=False) + "\n")
            say(f"saved to {file}")
        except OSError as error:
            say(f"{error}")

    def answer(self, text: str) -> None:
        """Stream the answer to a turn. Ctrl-C stops it and keeps the text so far."""
        self._turns.append({"role": "user", "content": text})
        prompt, answer = self._prompt(), _StreamedAnswer()
        if self._capacity.is_exceeded(prompt.length + 1):
            self._turns.pop()
            say(
                f"the conversation has {prompt.length:,} tokens; "
                f"{self._capacity}; /reset starts over"
            )
            return
        try:
            for piece in self._stream(prompt, answer):
                answer.text += piece
                if not self._as_json:
                    write_data(piece)
        except KeyboardInterrupt:
            answer.stop_reason = None
            say(" [stopped]", end="")
        turn = {"role": "assistant", "content": answer.text.strip()}
        if self._as_json:
            show_json(
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

    def _prompt(self) -> tinker.ModelInput:
        return tinker.ModelInput.from_ints(
            encode_prompt(self._tokenizer, self._messages(), {}, self._chat_options)
        )

    def _stops(self) -> list[str]:
        """Return the stop sequences of plain text: your next turn and the end of text. None with a
        chat template.
        """
        if has_template(self._tokenizer):
            return []
        end: str | None = getattr(self._tokenizer, "eos_token", None)
        return [_YOUR_TURN, *([end] if end else [])]
