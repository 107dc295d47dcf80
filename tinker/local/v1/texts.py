"""Text and tokens on the server's side: the model's tokenizer, and a sample on its way to text."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias

import attrs

from tinker._chat import ChatTurn, write_plain_chat
from tinker.local.engines.opening import PACKAGED_FOLDER
from tinker.local.engines.protocol import Engine
from tinker.local.errors import APIProblem

END_OF_TEXT, END_OF_TEXT_ID = "<|endoftext|>", 256
BYTES = 256


ToolSchema: TypeAlias = Mapping[str, Any]  # a tool, as chat templates read it
NO_TOOLS = "tools: transformers does not know how this model writes calls of tools"


class Texts(Protocol):
    """A tokenizer, as the endpoints use it."""

    @property
    def ends(self) -> Mapping[int, str]:
        """Return the tokens that end a text, and how they are written."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a prompt."""
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens, without the special ones unless they are wanted."""
        ...

    def encode_chat(self, messages: Sequence[ChatTurn], tools: Sequence[ToolSchema]) -> list[int]:
        """Return the tokens of a conversation, up to where the assistant begins.

        Raises APIProblem 400 for a wrong one, and for tools that the model cannot call.
        """
        ...

    def read_calls(self, prompt: Sequence[int], tokens: Sequence[int], tools: Sequence[ToolSchema]) -> ChatTurn | None:
        """Return what was written as a message with ``tool_calls``; None where no tool is called as it has to be."""
        ...


class ByteTexts:
    """The packaged tokenizer, whose first 256 tokens are bytes; it needs no other package."""

    @property
    def ends(self) -> Mapping[int, str]:
        return {END_OF_TEXT_ID: END_OF_TEXT}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        end = END_OF_TEXT.encode() if special else b""
        parts = (bytes([token]) if token < BYTES else end if token == END_OF_TEXT_ID else b"" for token in tokens)
        return b"".join(parts).decode("utf-8", "replace")

    def encode_chat(self, messages: Sequence[ChatTurn], tools: Sequence[ToolSchema]) -> list[int]:
        if tools:
            raise APIProblem(400, NO_TOOLS)
        return self.encode(_write_plain_chat(messages))

    def read_calls(self, prompt: Sequence[int], tokens: Sequence[int], tools: Sequence[ToolSchema]) -> ChatTurn | None:
        return None


def _write_plain_chat(messages: Sequence[ChatTurn]) -> str:
    """Write a conversation without a chat template. Raises APIProblem 400 for a message that calls a tool."""
    for index, message in enumerate(messages):
        if called := {"tool_calls", "tool_call_id"} & message.keys():
            raise APIProblem(400, f"messages[{index}].{min(called)} needs a model with a chat template")
    return write_plain_chat(messages)


class ModelTexts:
    """A tokenizer of ``transformers``, which several threads may use in turn."""

    def __init__(self, tokenizer: Any, model_type: str = "") -> None:
        self._tokenizer, self._lock = tokenizer, threading.Lock()
        self._calls = _find_response_template(tokenizer, model_type)

    @property
    def ends(self) -> Mapping[int, str]:
        end = self._tokenizer.eos_token_id
        return {} if end is None else {int(end): str(self._tokenizer.eos_token)}

    def encode(self, text: str) -> list[int]:
        with self._lock:
            return list(self._tokenizer.encode(text))

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        with self._lock:
            text = self._tokenizer.decode(list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False)
            return str(text)

    def encode_chat(self, messages: Sequence[ChatTurn], tools: Sequence[ToolSchema]) -> list[int]:
        if tools and self._calls is None:
            raise APIProblem(400, NO_TOOLS)
        if not self._tokenizer.chat_template:
            return self.encode(_write_plain_chat(messages))
        try:
            with self._lock:
                text = self._tokenizer.apply_chat_template(
                    list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=True
                )
                return list(self._tokenizer.encode(text, add_special_tokens=False))
        except Exception as error:  # templates may raise anything
            raise APIProblem(400, f"the model's chat template refuses these messages: {error}") from error

    def read_calls(self, prompt: Sequence[int], tokens: Sequence[int], tools: Sequence[ToolSchema]) -> ChatTurn | None:
        try:
            with self._lock:
                turn: ChatTurn = self._tokenizer.parse_response(
                    list(tokens), self._calls, prefix=list(prompt), tools=list(tools)
                )
        except ValueError:  # it begins like a call
            return None
        calls = turn.get("tool_calls") or ()
        return turn if calls and all(map(_is_call, calls)) else None


def _is_call(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    return isinstance(function, dict) and {"name", "arguments"} <= function.keys()


def _find_response_template(tokenizer: Any, model_type: str) -> Any:
    """Return what transformers needs to read the calls of tools that a model writes; None where it has nothing."""
    try:
        serving: Any = importlib.import_module("transformers.cli.serving.utils")
    except ImportError:  # an older release
        return None
    return serving.get_response_template(tokenizer, SimpleNamespace(config=SimpleNamespace(model_type=model_type)))


def load_texts(engine: Engine) -> Texts:
    """Load the tokenizer of the engine's model. Blocks. Raises APIProblem 501 where it cannot be loaded."""
    name = engine.tokenizer_id
    if Path(name) == PACKAGED_FOLDER:
        return ByteTexts()
    try:
        import transformers

        tokenizers: Any = transformers.AutoTokenizer
        configs: Any = transformers.AutoConfig
        texts = tokenizers.from_pretrained(name)
        has_config = not Path(name).is_dir() or (Path(name) / "config.json").is_file()
        return ModelTexts(texts, configs.from_pretrained(name).model_type if has_config else "")
    except (ImportError, OSError, ValueError) as error:
        raise APIProblem(501, f"texts cannot be read or written: the tokenizer {name!r} does not load: {error}") from error


INCOMPLETE = "\ufffd"  # the decoding of an incomplete character


@attrs.frozen
class TokenScore:
    """A token as text, its log-probability (None for the first one of a prompt), and the likeliest ones in its place."""

    token: int
    text: str
    logprob: float | None
    top: Sequence[tuple[str, float]] = ()


class SampleText:
    """One sample on its way to text: characters are given out whole, and never a stop or the beginning of one."""

    def __init__(self, texts: Texts, stops: Sequence[str]) -> None:
        self._texts, self._stops = texts, [stop for stop in stops if stop]
        self._tokens: list[int] = []
        self._begin = self._read = 0
        self._held = ""
        self._new: list[TokenScore] = []
        self.finish_reason: str | None = None
        self.token_count: int = 0

    def add(self, score: TokenScore, stop_reason: str | None) -> str:
        """Take the next token, the last one with its reason; returns the text that can be given out now."""
        if self.finish_reason is not None:
            return ""
        self.token_count += 1
        self._new.append(score)
        is_end = score.token in self._texts.ends or (stop_reason == "stop" and not self._stops)
        if not is_end:
            self._tokens.append(score.token)
        text = self._take(self._decode(whole=is_end or stop_reason is not None))
        if self.finish_reason is None and (is_end or stop_reason is not None):
            return text + self.finish("stop" if is_end else stop_reason or "stop")
        return text

    def finish(self, reason: str) -> str:
        """End the sample; returns the text that was held back."""
        rest, self._held = self._held, ""
        self.finish_reason = self.finish_reason or reason
        return rest

    def drain_scores(self) -> list[TokenScore]:
        """Return the tokens since the last call."""
        scores, self._new = self._new, []
        return scores

    def _decode(self, *, whole: bool) -> str:
        """Return the text of the tokens that were not read yet; nothing while a character is incomplete, unless ``whole``."""
        before = self._texts.decode(self._tokens[self._begin : self._read])
        text = self._texts.decode(self._tokens[self._begin :])
        if not whole and text.endswith(INCOMPLETE):
            return ""
        self._begin, self._read = self._read, len(self._tokens)
        return text[len(before) :]

    def _take(self, text: str) -> str:
        """Return what no stop can begin in, up to the first stop."""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self._held = self._held[: min(found)]
            return self.finish("stop")
        kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        ready, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return ready


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of a text that a stop begins with."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-size:])), 0)
