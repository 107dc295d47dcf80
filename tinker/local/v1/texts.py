"""Text and tokens on the server's side: the model's tokenizer, and a sample on its way to text."""

from __future__ import annotations

import codecs
import functools
import importlib
import re
import threading
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import attrs

from tinker._chat import ChatTurn, Ending, encode_prompt_text, has_template, render_prompt
from tinker._tokenizers import open_tokenizer
from tinker.local.engines.opening import PACKAGED_FOLDER, find_ends
from tinker.local.engines.protocol import Engine
from tinker.local.errors import APIProblem

END_OF_TEXT, END_OF_TEXT_ID = "<|endoftext|>", 256
BYTES = 256


ToolSchema: TypeAlias = Mapping[str, Any]  # a tool, as chat templates read it
NO_TOOLS = "tools: transformers does not know how this model writes calls of tools"


@attrs.frozen(kw_only=True)
class ChatForm:
    """How a conversation is written: whether it ends with the start of an answer or within its last
    message.

    ``adds_special``: the tokenizer adds its special tokens, besides those of the template, which
    reads the ``options``.
    """

    starts_answer: bool = True
    continues_last: bool = False
    adds_special: bool = False
    options: Mapping[str, object] = attrs.Factory(dict[str, object])


@attrs.frozen
class Word:
    """A token, and the bytes that it adds to a text. Those of a special token are its name, which
    texts leave out.
    """

    token: int
    content: bytes
    is_special: bool = False

    @property
    def text(self) -> str:
        """Return the bytes as text; a part of a character as OpenAI's API writes it, such as
        ``bytes:\\xf0\\x9f``.
        """
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.content)


# How byte-level vocabularies write each byte: those that can be seen as themselves, the others as
# the characters from 256 on.
_SEEN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(BYTES) if byte not in _SEEN]
_LETTERS = {
    **{byte: chr(byte) for byte in _SEEN},
    **{byte: chr(BYTES + at) for at, byte in enumerate(_HIDDEN)},
}
_BYTES = {letter: byte for byte, letter in _LETTERS.items()}
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")  # how vocabularies with byte fallback write a byte


class Texts:
    """A tokenizer, as the endpoints use it; ``ends`` are the tokens that end a text.

    This is the packaged one, whose first 256 tokens are bytes. It needs no other package.
    """

    ends: frozenset[int] = frozenset({END_OF_TEXT_ID})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a prompt, with the special ones that the tokenizer puts around it
        unless they are not wanted.
        """
        return list(text.encode())

    def encode_prompt(self, text: str) -> list[int]:
        """Return the tokens of a text to continue, without an end that the tokenizer appends."""
        return self.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with the special ones."""
        return b"".join(self.word(None, token).content for token in tokens).decode(errors="replace")

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return the tokens as the vocabulary writes them."""
        return [_LETTERS.get(token, END_OF_TEXT) for token in tokens]

    def word(self, previous: int | None, token: int) -> Word:
        """Return what a token adds behind the ``previous`` one, or at the beginning of a text."""
        is_end = token == END_OF_TEXT_ID
        return Word(
            token,
            bytes([token]) if token < BYTES else END_OF_TEXT.encode() if is_end else b"",
            is_end,
        )

    def encode_chat(
        self, messages: Sequence[ChatTurn], tools: Sequence[ToolSchema], form: ChatForm = ChatForm()
    ) -> list[int]:
        """Return the tokens of a conversation, by default up to where the assistant begins.

        Raises APIProblem 400 for a wrong one, and for tools that the model cannot call.
        """
        if tools:
            raise APIProblem(400, NO_TOOLS)
        return self.encode(_render(None, messages, tools, form))

    def read_calls(
        self, prompt: Sequence[int], tokens: Sequence[int], tools: Sequence[ToolSchema]
    ) -> ChatTurn | None:
        """Return what was written as a message with ``tool_calls``; None where no tool is called as
        it has to be.
        """
        return None


def _render(
    tokenizer: Any, messages: Sequence[ChatTurn], tools: Sequence[ToolSchema], form: ChatForm
) -> str:
    """Return the text of a conversation. Raises APIProblem 400 for a wrong one, and for tools that
    are not written.
    """
    ending: Ending = (
        "open" if form.continues_last else "answer" if form.starts_answer else "message"
    )
    try:
        _, text, unwritten = render_prompt(tokenizer, messages, tools, form.options, ending=ending)
    except ValueError as error:
        raise APIProblem(400, f"messages: {error}") from error
    lost = next((one for one in unwritten if one.field in ("tools", "chat_template_kwargs")), None)
    if lost is not None:
        raise APIProblem(400, f"{lost.field}: {lost.message}")
    return text


class ModelTexts(Texts):
    """A tokenizer of ``transformers``, which several threads may use in turn; ``settings`` name
    other ends of texts.
    """

    def __init__(
        self, tokenizer: Any, model_type: str = "", settings: Sequence[object] = ()
    ) -> None:
        self._tokenizer, self._lock = tokenizer, threading.Lock()
        self._calls = _find_response_template(tokenizer, model_type)
        self.ends: frozenset[int] = find_ends(tokenizer, *settings)
        self._recall = functools.lru_cache(MAX_RECALLED)(self.decode)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=special))

    def encode_prompt(self, text: str) -> list[int]:
        with self._lock:
            return encode_prompt_text(self._tokenizer, text)

    def decode(self, tokens: Sequence[int], *, special: bool = True) -> str:
        with self._lock:
            text = self._tokenizer.decode(
                list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
            return str(text)

    def names(self, tokens: Sequence[int]) -> list[str]:
        return [str(name) for name in self._tokenizer.convert_ids_to_tokens(list(tokens))]

    def word(self, previous: int | None, token: int) -> Word:
        """Return a word. A token that is no whole text is known by its name; of others, the context
        decides on spaces.
        """
        alone, [name] = self._recall((token,)), self.names([token])
        is_special = bool(alone) and not self._recall((token,), special=False)
        byte = _FALLBACK.fullmatch(name)
        if byte is not None and name not in alone:
            return Word(token, bytes.fromhex(byte[1]))
        if INCOMPLETE in alone and _BYTES.keys() >= set(name):
            return Word(token, bytes(_BYTES[letter] for letter in name))
        before = () if previous is None or is_special else (previous,)
        return Word(
            token, self._recall((*before, token))[len(self._recall(before)) :].encode(), is_special
        )

    def encode_chat(
        self, messages: Sequence[ChatTurn], tools: Sequence[ToolSchema], form: ChatForm = ChatForm()
    ) -> list[int]:
        if tools and self._calls is None:
            raise APIProblem(400, NO_TOOLS)
        with self._lock:
            text = _render(self._tokenizer, messages, tools, form)
        return (
            self.encode(text, special=form.adds_special)
            if has_template(self._tokenizer)
            else self.encode_prompt(text)
        )

    def read_calls(
        self, prompt: Sequence[int], tokens: Sequence[int], tools: Sequence[ToolSchema]
    ) -> ChatTurn | None:
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
    """Return what transformers needs to read the calls of tools that a model writes; None where it
    has nothing.
    """
    try:
        serving: Any = importlib.import_module("transformers.cli.serving.utils")
    except ImportError:  # an older release
        return None
    return serving.get_response_template(
        tokenizer, SimpleNamespace(config=SimpleNamespace(model_type=model_type))
    )


def load_texts(engine: Engine) -> Texts:
    """Load the tokenizer of the engine's model. Blocks. Raises APIProblem 501 where it cannot be
    loaded.
    """
    name = engine.tokenizer_id
    if Path(name) == PACKAGED_FOLDER:
        return Texts()
    try:
        import transformers

        library: Any = transformers
        tokenizer = open_tokenizer(name)
        if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
            return ModelTexts(tokenizer)
        config = library.AutoConfig.from_pretrained(name, trust_remote_code=False)
        try:
            generation = library.GenerationConfig.from_pretrained(name)
        except OSError:  # many models have none
            generation = None
        return ModelTexts(tokenizer, config.model_type, [config.get_text_config(), generation])
    except (ImportError, OSError, ValueError) as error:
        raise APIProblem(
            501, f"texts cannot be read or written: the tokenizer {name!r} does not load: {error}"
        ) from error


INCOMPLETE = "\ufffd"  # the decoding of an incomplete character
MAX_RECALLED = 1 << 16  # tokens, and pairs of tokens, whose text is kept


@attrs.frozen
class TokenScore:
    """A token with its log-probability (None for the first one of a prompt), the likeliest ones in
    its place, and where in the text it begins.
    """

    word: Word
    logprob: float | None
    top: Sequence[tuple[Word, float]] = ()
    offset: int = 0


class SampleText:
    """One sample on its way to text: characters are given out whole, and never a stop or the
    beginning of one.

    It follows a text of ``begin`` characters, whose last token is ``previous``. One of ``ends``
    ends it, and no text among the first ``least`` tokens.
    """

    def __init__(
        self,
        texts: Texts,
        stops: Sequence[str],
        ends: Set[int],
        previous: int | None = None,
        begin: int = 0,
        least: int = 0,
    ) -> None:
        self._texts, self._stops, self._ends, self._least = texts, stops, ends, least
        self._previous, self._given = previous, begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._new: list[TokenScore] = []
        self.finish_reason: str | None = None
        self.token_count: int = 0

    def add(self, token: int, logprob: float | None, top: Sequence[tuple[int, float]] = ()) -> str:
        """Take the next token; returns the text that can be given out now."""
        if self.finish_reason is not None:
            return ""
        self.token_count += 1
        word = self._texts.word(self._previous, token)
        likely = [(self._texts.word(self._previous, one), value) for one, value in top]
        self._new.append(TokenScore(word, logprob, likely, self._given + len(self._held)))
        if token in self._ends:
            return self.finish("stop")
        if word.is_special:
            return ""
        self._previous = token
        return self._take(self._decoder.decode(word.content))

    def finish(self, reason: str) -> str:
        """End the sample; returns the text that was held back."""
        if self.finish_reason is not None:
            return ""
        text = self._take(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        self.finish_reason = self.finish_reason or reason
        self._given += len(rest)
        return text + rest

    def drain_scores(self) -> list[TokenScore]:
        """Return the tokens since the last call whose text was given out; at the
        end all of them.
        """
        is_over = self.finish_reason is not None
        ready = [one for one in self._new if is_over or one.offset < self._given]
        del self._new[: len(ready)]
        return [attrs.evolve(one, offset=min(one.offset, self._given)) for one in ready]

    def _take(self, text: str) -> str:
        """Return what no stop can begin in, up to the first stop."""
        self._held += text
        stops = self._stops if self.token_count > self._least else ()
        found = [at for stop in stops if (at := self._held.find(stop)) >= 0]
        if found:
            ready, self._held, self.finish_reason = self._held[: min(found)], "", "stop"
        else:
            kept = max((_overlap(self._held, stop) for stop in stops), default=0)
            ready, self._held = (
                self._held[: len(self._held) - kept],
                self._held[len(self._held) - kept :],
            )
        self._given += len(ready)
        return ready


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of a text that a stop begins with."""
    return next(
        (
            size
            for size in range(min(len(text), len(stop) - 1), 0, -1)
            if stop.startswith(text[-size:])
        ),
        0,
    )
