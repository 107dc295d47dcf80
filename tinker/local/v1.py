"""The endpoints that clients for OpenAI's API ask for: ``/v1/models``, ``/v1/completions`` and
``/v1/chat/completions``. With them come ``/tokenize`` and ``/detokenize``, as vLLM has them.

They are no part of the contract. A request becomes a sample of the contract (``asample`` or
``stream_sample``), so that it waits, is counted and is refused like every other one.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import functools
import importlib
import math
import re
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import attrs
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker._chat import ChatTurn, Ending, encode_prompt_text, has_template, render_prompt
from tinker._tokenizers import open_tokenizer
from tinker.local.call import (
    APICall,
    APIProblem,
    Endpoint,
    UnknownFields,
    answer_errors,
    describe_field_errors,
    find_unknown_fields,
    read_body,
    read_credential,
    receive,
)
from tinker.local.engines import PACKAGED_FOLDER, find_ends
from tinker.local.engines.protocol import Engine, EngineError
from tinker.local.handlers.common import choose_engine_for, find_engine
from tinker.local.handlers.sampling import (
    KEEP_ALIVE,
    STREAM_HEADERS,
    OwnSampleRequest,
    open_stream,
    submit_sample,
)
from tinker.local.state import State
from tinker.local.storage.futures import RequestFailure
from tinker.types.results import SampledSequence, SampleResponse, TopkLogprobs
from tinker_records import find_meant

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
            size = len(self._held) - kept
            ready, self._held = self._held[:size], self._held[size:]
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


MAX_TOP_LOGPROBS = 100
DEFAULT_MAX_TOKENS = 16  # of completions, as in OpenAI's API; a chat may fill the context
SCHEME = "tinker://"


# Parameters of OpenAI's API and of other servers that change the prompt, the text or the extra
# output. This server has none.
_OTHERS = str.split("""
allowed_token_ids audio bad_words bad_words_ids chat_template documents dry_multiplier ebnf
epsilon_cutoff eta_cutoff grammar guided_choice guided_grammar guided_json guided_regex
include_stop_str_in_output json_schema length_penalty logits_processors min_new_tokens mirostat
no_repeat_ngram_size no_stop_trim prompt_logprobs reasoning reasoning_effort regex repeat_penalty
return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens stop_regex
structural_tag structured_outputs tfs_z thinking top_a truncate_prompt_tokens typical_p
use_beam_search verbosity web_search_options xtc_probability
""")

if TYPE_CHECKING:
    Others = msgspec.Struct
else:
    Others = msgspec.defstruct("Others", [(name, object, None) for name in _OTHERS], kw_only=True)


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool = False


class NamedSchema(msgspec.Struct, kw_only=True):
    """A JSON schema; without one, any JSON value will do."""

    schema: models.JSONSchema = {}
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """The form of a text: ``text``, ``json_object``, or the schema of ``json_schema``."""

    type: str
    json_schema: NamedSchema | None = None

    def read_schema(self) -> models.JSONSchema | None:
        """Return the schema that the text has to follow; None for free text. Raises APIProblem 400
        for another form.
        """
        if self.type == "json_schema" and self.json_schema is not None:
            return self.json_schema.schema
        if self.type not in ("text", "json_object"):
            raise APIProblem(
                400,
                f"response_format.type is {self.type!r}; it must be text, json_object, or "
                "json_schema with a json_schema",
            )
        return {"type": "object"} if self.type == "json_object" else None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Tokens whose text is asked for."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]
    model: str = ""

    def find_faults(self, max_samples: int) -> Iterator[str]:
        return iter(())


class GenerationBody(Others, kw_only=True):
    """The fields of both kinds of requests. A missing field is None."""

    model: str
    n: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    return_token_ids: bool = False
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    priority: int | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None

    @property
    def stops(self) -> list[str]:
        """Return the texts that end a sample."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def find_faults(self, max_samples: int) -> Iterator[str]:
        """Yield what this server cannot do, naming the field."""
        if not 1 <= self.n <= max_samples:
            yield f"n is {self.n}; it must be from 1 to {max_samples}"
        yield from _check_count("max_tokens", self.max_tokens)
        yield from _name_fields(self, ("logit_bias", *_OTHERS))
        if "" in self.stops:
            yield "stop contains an empty text"
        if not 0 <= self.min_tokens <= (self.max_tokens or math.inf):
            yield f"min_tokens is {self.min_tokens}; it must be from 0 to max_tokens"


_NOT_OF_COMPLETIONS = (
    "suffix",
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
)


class CompletionBody(GenerationBody, kw_only=True):
    """A text, or tokens, to continue with."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return every prompt, as text or tokens. Raises APIProblem 400 for a mixture."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if numbers := [item for item in self.prompt if isinstance(item, int)]:
            if len(numbers) != len(self.prompt):
                raise APIProblem(400, "prompt mixes token ids with other things")
            return [numbers]
        return [item for item in self.prompt if not isinstance(item, int)]

    def find_faults(self, max_samples: int) -> Iterator[str]:
        yield from super().find_faults(max_samples)
        yield from _name_fields(self, _NOT_OF_COMPLETIONS)
        if self.best_of not in (None, self.n):
            yield "best_of must be n, or be left out"
        if not self.prompts or not all(self.prompts):
            yield "prompt is empty"
        if self.stream and len(self.prompts) > 1:
            yield "stream takes one prompt"
        if self.stream and self.echo:
            yield "stream and echo cannot be combined"
        yield from _check_count("logprobs", self.logprobs, MAX_TOP_LOGPROBS)


class CalledFunction(msgspec.Struct, kw_only=True):
    """A function that was called, with its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A call of a tool."""

    id: str
    type: str = "function"
    function: CalledFunction


_ROLES = ("system", "developer", "user", "assistant", "tool")


class ContentPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    audio: object = None
    function_call: object = None
    reasoning_content: object = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None

    def read_text(self) -> str:
        """Return the text. Raises APIProblem 400 for anything but text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        if other := [part.type for part in self.content if part.type != "text"]:
            raise APIProblem(400, f"content of type {other[0]!r} is not read here; send text")
        return "".join(part.text or "" for part in self.content)

    def to_turn(self) -> dict[str, object]:
        """Return the message as data. Raises APIProblem 400 for anything but text and calls of
        tools.
        """
        turn: dict[str, object] = {"role": self.role, "content": self.read_text()}
        if self.tool_calls:
            turn["tool_calls"] = msgspec.to_builtins(self.tool_calls)
        if self.tool_call_id is not None:
            turn["tool_call_id"] = self.tool_call_id
        return turn


_LOST = ("audio", "function_call", "reasoning_content")  # no prompt has them here


class ChatBody(GenerationBody, kw_only=True):
    """A conversation to continue with."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: object = None
    functions: list[object] | None = None

    @property
    def callable_tools(self) -> Sequence[dict[str, object]]:
        """Return the tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []

    def find_faults(self, max_samples: int) -> Iterator[str]:
        yield from super().find_faults(max_samples)
        yield from _name_fields(self, ("functions",))
        if self.tools and self.tool_choice not in (None, "auto", "none"):
            yield "tool_choice must be auto or none"
        if not self.messages:
            yield "messages is empty"
        for index, message in enumerate(self.messages):
            yield from (f"messages[{index}].{fault}" for fault in _check_message(message))
        if self.continue_final_message and self.add_generation_prompt:
            yield "continue_final_message and add_generation_prompt cannot both be true"
        yield from _check_count("max_completion_tokens", self.max_completion_tokens)
        if self.top_logprobs and not self.logprobs:
            yield "top_logprobs needs logprobs"
        yield from _check_count("top_logprobs", self.top_logprobs, MAX_TOP_LOGPROBS)


class TokenizeBody(ChatBody, kw_only=True):
    """A text, or a conversation, whose tokens are asked for. It may be the body of
    another request.
    """

    model: str = ""
    messages: list[ChatMessage] = msgspec.field(default_factory=list[ChatMessage])
    prompt: str | None = None
    return_token_strs: bool = False

    def find_faults(self, max_samples: int) -> Iterator[str]:
        if (self.prompt is None) == (not self.messages):
            yield "either prompt or messages must be given"
        yield from super().find_faults(max_samples) if self.messages else ()


Body = TypeVar("Body", bound=GenerationBody | DetokenizeBody)


# What changes nothing. Of every other parameter that is zero, false and empty.
_NEUTRAL: dict[str, object] = {
    "add_generation_prompt": True,
    "length_penalty": 1,
    "prompt_logprobs": None,  # 0 asks for those of the prompt's own tokens
    "repeat_penalty": 1,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "tfs_z": 1,
    "typical_p": 1,
}

# Parameters of OpenAI's API and of other servers that leave the text as it is: they are reported
# and ignored.
_IGNORED = str.split("""
function_call metadata mirostat_eta mirostat_tau modalities parallel_tool_calls prediction
prompt_cache_key prompt_cache_retention request_id safety_identifier service_tier store
""")
_LIKENESS = 0.8  # of a misspelling to the name that was meant; "user_id" is no "user"


def _asks_for(name: str, value: object) -> bool:
    """Return whether a value asks for something that the server would have to do."""
    return bool(value) if name not in _NEUTRAL else value is not None and value != _NEUTRAL[name]


def check_body(content: bytes, body: GenerationBody | DetokenizeBody, max_samples: int) -> None:
    """Raise APIProblem 400 for the first misspelled parameter, and for what this server cannot do.

    Names that resemble none are left alone, and so are those of other endpoints.
    """
    others = {*_IGNORED, *CompletionBody.__struct_fields__, *ChatBody.__struct_fields__}
    for name in find_unknown_fields(content, type(body)):
        if "." not in name and name not in others:
            meant = find_meant(name, {*body.__struct_fields__, *_IGNORED}, _LIKENESS)
            if meant is not None:
                raise APIProblem(400, f'unknown parameter "{name}"; did you mean "{meant}"?')
    if faults := list(body.find_faults(max_samples)):
        raise APIProblem(400, "; ".join(faults))


def _check_message(message: ChatMessage) -> Iterator[str]:
    if message.role not in _ROLES:
        yield f"role is {message.role!r}; it must be one of {', '.join(_ROLES)}"
    elif message.content is None and message.role != "assistant":
        yield "content is missing"
    yield from _name_fields(message, _LOST)


def _name_fields(body: GenerationBody | ChatMessage, names: Sequence[str]) -> list[str]:
    """Name the fields that ask for something; neutral values, such as zero, are left out."""
    return [
        f"{name} is not supported by this server"
        for name in names
        if _asks_for(name, getattr(body, name, None))
    ]


def _check_count(name: str, count: int | None, most: float = math.inf) -> list[str]:
    bounds = "at least 0" if most == math.inf else f"0 to {most}"
    return (
        [] if count is None or 0 <= count <= most else [f"{name} is {count}; it must be {bounds}"]
    )


AnswerBody: TypeAlias = dict[str, Any]
DONE = b"data: [DONE]\n\n"


@attrs.frozen(kw_only=True)
class SamplePart:
    """A sample, or a part of one in a stream: the first has its ``prompt``, the last one its
    ``finish_reason``.

    ``scores`` may begin with those of the prompt, ``tokens`` are the sample's own. ``turn`` is what
    it is as a message with calls of tools.
    """

    index: int
    text: str = ""
    scores: Sequence[TokenScore] = ()
    tokens: Sequence[int] = ()
    finish_reason: str | None = None
    turn: ChatTurn | None = None
    prompt: Sequence[int] | None = None

    def describe_message(self) -> AnswerBody:
        """Return the message of a chat, or what a part of it adds."""
        if self.turn is not None:
            return describe_turn(self.turn)
        role = {} if self.prompt is None else {"role": "assistant"}
        return (
            {**role, "content": self.text}
            if role or self.text or self.finish_reason is None
            else {}
        )


@attrs.frozen(kw_only=True)
class AnswerForm:
    """The form of one answer: ``scored`` says whether log-probabilities are wanted, ``numbered``
    whether token ids are.
    """

    model: str
    created: int
    scored: bool
    numbered: bool
    is_chat: bool
    answer_id: str = attrs.field(factory=lambda: uuid.uuid4().hex)

    def whole(self, pieces: Sequence[SamplePart], usage: AnswerBody) -> AnswerBody:
        return {
            **self._head(),
            "choices": [self._describe(piece, "message") for piece in pieces],
            "usage": usage,
            **self._number(pieces[0], in_choice=False),
        }

    def chunk(self, piece: SamplePart) -> bytes:
        """Encode one event of a stream."""
        choices = [self._describe(piece, "delta")]
        return encode_event(
            {**self._head(".chunk"), "choices": choices, **self._number(piece, in_choice=False)}
        )

    def usage_chunk(self, usage: AnswerBody) -> bytes:
        """Encode the event with the counts."""
        return encode_event({**self._head(".chunk"), "choices": [], "usage": usage})

    def _describe(self, piece: SamplePart, name: str) -> AnswerBody:
        return {
            "index": piece.index,
            **({name: piece.describe_message()} if self.is_chat else {"text": piece.text}),
            "logprobs": self._scores(piece.scores),
            "finish_reason": piece.finish_reason,
            **({"token_ids": piece.tokens} if self.numbered else {}),
            **self._number(piece, in_choice=True),
        }

    def _number(self, piece: SamplePart, *, in_choice: bool) -> AnswerBody:
        """Return the tokens of the prompt, which vLLM puts into the choices of completions, and
        beside those of chats.
        """
        is_here = self.numbered and piece.prompt is not None and in_choice != self.is_chat
        return {"prompt_token_ids": piece.prompt} if is_here else {}

    def _head(self, chat_part: str = "") -> AnswerBody:
        """Return the members before the choices. ``chat_part`` is added to the object of a chat."""
        prefix, kind = (
            ("chatcmpl", f"chat.completion{chat_part}")
            if self.is_chat
            else ("cmpl", "text_completion")
        )
        return {
            "id": f"{prefix}-{self.answer_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }

    def _scores(self, scores: Sequence[TokenScore]) -> AnswerBody | None:
        """Describe scored tokens, for completions as a list for each property."""
        if not self.scored or not scores:
            return None
        if self.is_chat:
            return {
                "content": [
                    {
                        **_describe_word(score.word, score.logprob),
                        "top_logprobs": [_describe_word(*one) for one in score.top],
                    }
                    for score in scores
                ]
            }
        return {
            "tokens": [score.word.text for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [_describe_top(score) for score in scores],
            "text_offset": [score.offset for score in scores],
        }


def describe_turn(turn: ChatTurn) -> AnswerBody:
    """Describe a message that calls tools."""
    calls = [
        {
            "index": index,
            "id": f"call_{uuid.uuid4().hex}",
            "type": "function",
            "function": _describe_call(call["function"]),
        }
        for index, call in enumerate(turn["tool_calls"])
    ]
    return {"content": None, **turn, "role": "assistant", "tool_calls": calls}


def _describe_call(function: AnswerBody) -> AnswerBody:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return {"name": function["name"], "arguments": text}


def _describe_word(word: Word, logprob: float | None) -> AnswerBody:
    return {"token": word.text, "logprob": logprob, "bytes": list(word.content)}


def _describe_top(score: TokenScore) -> dict[str, float] | None:
    """Return the token itself and the likeliest ones; of several that read alike, the others by
    their ids.
    """
    if score.logprob is None:
        return None
    found = {score.word.text: score.logprob}
    for word, logprob in score.top:
        if word.token != score.word.token:
            found[f"token_id:{word.token}" if word.text in found else word.text] = logprob
    return found


def encode_event(value: AnswerBody) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


# What a refusal begins with, such as 'messages[0].role', 'top_p' or 'unknown parameter "topp"'.
_NAMED = re.compile(
    r"""(?P<place>(?P<field>\w+)(\[\d+\])?(\.\w+)?)(?P<unknown> parameter "(?P<name>[^"]+)")?"""
)
_TOO_LONG = "context length"  # what the refusal of a prompt and max_tokens names that do not fit
_FIELDS = frozenset({*CompletionBody.__struct_fields__, *ChatBody.__struct_fields__})


def describe_error(status: int, detail: object, param: str | None = None) -> AnswerBody:
    """Return an error in the form of OpenAI's API. By default the parameter is the field that the
    text begins with.
    """
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    codes = {401: "invalid_api_key", 404: "model_not_found" if param == "model" else "not_found"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    message, code = detail, codes.get(status)
    if isinstance(detail, str):
        named = _NAMED.match(detail)
        if named is not None and kind == "invalid_request_error":
            param = named["name"] or (named["place"] if named["field"] in _FIELDS else param)
        code = "context_length_exceeded" if _TOO_LONG in detail else code
    else:
        message, param = describe_field_errors(detail) or (
            msgspec.json.encode(detail).decode(),
            None,
        )
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


# What the contract has, too.
_SAMPLING = str.split(
    "seed temperature top_k top_p min_p "
    "presence_penalty frequency_penalty repetition_penalty priority"
)
LOOK_SECONDS = 1.0  # between two looks whether the client is still there


async def find_model(state: State, name: str) -> tuple[str, Engine]:
    """Return a base model or a checkpoint to sample from, and its engine. Raises APIProblem 404 for
    another name.

    The name or ID of a run is its newest checkpoint to sample from.
    """
    engines = await state.engines()
    if not name.startswith(SCHEME) and not any(
        name == one.base_model or name in one.aliases for one in engines
    ):
        records = await state.offload_always(state.checkpoints.list)
        named = (
            one.path
            for one in records
            if one.kind == "sampler_weights"
            and name in (one.training_run_id, (one.run_metadata or {}).get("name"))
        )
        name = next(named, name)
    try:
        if not name.startswith(SCHEME):
            return name, choose_engine_for(state, engines, name)[0]
        record, _ = await state.offload_always(
            lambda: state.checkpoints.find(name, "sampler_weights")
        )
        return name, find_engine(engines, record.engine_model)
    except (EngineError, APIProblem) as error:
        raise APIProblem(404, str(error)) from error


async def sample(
    state: State, request: Request, call: APICall, wanted: models.SampleRequest
) -> SampleResponse:
    """Sample, and wait for the whole result. The work ends when the client goes. APIProblem when it
    fails.
    """
    promise = await submit_sample(state, call, wanted)
    future = state.futures.find(promise.request_id)
    try:
        while (outcome := await future.wait(LOOK_SECONDS)) is None:
            if await request.is_disconnected():
                raise ClientDisconnect
    finally:
        if future.outcome is None:
            state.cancel_sample(future)
        state.futures.release(promise.request_id)
    if isinstance(outcome, RequestFailure):
        # the refusal names what was sent
        detail = outcome.error.replace("json_schema needs", "response_format needs")
        raise APIProblem(400 if outcome.category == "user" else 500, detail)
    assert isinstance(outcome, SampleResponse)
    return outcome


@attrs.frozen(kw_only=True)
class Conversation:
    """One request: ``top`` is how many of the likeliest tokens are wanted at each place, ``echo``
    whether the prompt comes back, with its scores, and ``tools`` are those that the model may call.
    ``continues``: its text continues the prompt's.
    """

    state: State
    texts: Texts
    form: AnswerForm
    body: GenerationBody
    prompts: Sequence[Sequence[int]]
    max_tokens: int | None
    top: int
    echo: bool = False
    tools: Sequence[ToolSchema] = ()
    continues: bool = True

    async def answer(self, request: Request, call: APICall) -> AnswerBody:
        """Sample every prompt; returns the whole answer."""
        pieces = await self._sample_all(request, call)
        return self.form.whole(pieces, self._count(sum(len(piece.tokens) for piece in pieces)))

    async def _sample_all(self, request: Request, call: APICall) -> list[SamplePart]:
        """Sample every prompt, all at once; the first failure is raised when all have ended."""
        tasks = [
            sample(self.state, request, call, self._to_request(prompt)) for prompt in self.prompts
        ]
        pieces: list[SamplePart] = []
        for prompt, outcome in zip(
            self.prompts, await asyncio.gather(*tasks, return_exceptions=True), strict=True
        ):
            if isinstance(outcome, BaseException):
                raise outcome
            for sequence in outcome.sequences:
                pieces.append(self._write(len(pieces), prompt, outcome, sequence))
        return pieces

    def _count(self, completion: int) -> AnswerBody:
        """Count the tokens of the request."""
        prompt = sum(map(len, self.prompts))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _write(
        self, index: int, prompt: Sequence[int], result: SampleResponse, sequence: SampledSequence
    ) -> SamplePart:
        """Return a sample that has ended, as a message where tools are called in it."""
        echo, asked = self._echo(prompt, result) if self.echo else ("", [])
        text, tokens = self._begin(prompt, len(echo)), sequence.tokens_np.tolist()
        logprobs = (
            [0.0] * len(tokens) if sequence.logprobs_np is None else sequence.logprobs_np.tolist()
        )
        tops = _read_top(sequence.topk_logprobs_np, len(tokens))
        written = "".join(text.add(*drawn) for drawn in zip(tokens, logprobs, tops, strict=True))
        written += text.finish(sequence.stop_reason)
        turn = self.texts.read_calls(prompt, tokens, self.tools) if self.tools else None
        scores = text.drain_scores()
        return SamplePart(
            index=index,
            text=echo + written,
            scores=[*asked, *scores],
            tokens=[score.word.token for score in scores],
            finish_reason=text.finish_reason if turn is None else "tool_calls",
            turn=turn,
            prompt=prompt,
        )

    def _begin(self, prompt: Sequence[int], begin: int = 0) -> SampleText:
        """Return the text of a sample behind a prompt: another text, unless it continues that of
        the prompt.
        """
        words = (
            self.texts.word(None, token) for token in reversed(prompt if self.continues else ())
        )
        previous = next((word.token for word in words if not word.is_special), None)
        return SampleText(
            self.texts, self.body.stops, self._ends, previous, begin, self.body.min_tokens
        )

    def _echo(self, prompt: Sequence[int], result: SampleResponse) -> tuple[str, list[TokenScore]]:
        """Return the text of the prompt, and its scores if there are any."""
        text, values = SampleText(self.texts, (), frozenset()), result.prompt_logprobs_np
        logprobs = [None] * len(prompt) if values is None else [None, *values[1:].tolist()]
        tops = _read_top(result.topk_prompt_logprobs_np, len(prompt))
        words = "".join(
            text.add(*one) for one in zip(prompt, logprobs, [[], *tops[1:]], strict=True)
        ) + text.finish("length")
        return words, [] if values is None else text.drain_scores()

    @property
    def _ends(self) -> frozenset[int]:
        """Return the tokens that end a sample."""
        return frozenset(
            [*(self.body.stop_token_ids or ()), *(() if self.body.ignore_eos else self.texts.ends)]
        )

    def _to_request(self, prompt: Sequence[int]) -> OwnSampleRequest:
        """Return the sample of the contract that is asked for."""
        body, is_checkpoint = self.body, self.body.model.startswith(SCHEME)
        is_plain = not (body.stops or body.stop_token_ids or body.ignore_eos or body.min_tokens)
        return OwnSampleRequest(
            base_model=None if is_checkpoint else body.model,
            model_path=body.model if is_checkpoint else None,
            num_samples=body.n,
            prompt=models.ModelInput(chunks=[models.EncodedTextChunk(tokens=list(prompt))]),
            sampling_params=models.SamplingParams(
                **{name: value for name in _SAMPLING if (value := getattr(body, name)) is not None},
                max_tokens=self.max_tokens,
                stop=body.stops or None,
                json_schema=None
                if body.response_format is None
                else body.response_format.read_schema(),
            ),
            prompt_logprobs=self.echo
            and ((self.form.scored and len(prompt) > 1) or self.max_tokens == 0),
            topk_prompt_logprobs=self.top if self.echo and len(prompt) > 1 else 0,
            topk_sample_logprobs=self.top,
            ends=None if is_plain else sorted(self._ends),
            min_tokens=body.min_tokens,
        )

    # Streams

    async def open_stream(self, request: Request, call: APICall) -> AsyncGenerator[bytes]:
        """Begin a stream; APIProblem when it is refused.

        The likeliest tokens are not streamed, and calls of tools are read when they are whole, so
        these come all at once.
        """
        if self.top or self.tools:
            return self._replay(await self._sample_all(request, call))
        return self._follow(await open_stream(self.state, self._to_request(self.prompts[0])))

    async def _replay(self, pieces: Sequence[SamplePart]) -> AsyncGenerator[bytes]:
        count = sum(len(piece.tokens) for piece in pieces)
        for event in [*map(self.form.chunk, pieces), *self._last_events(count)]:
            yield event

    async def _follow(
        self, source: AsyncGenerator[models.SampleStreamEvent | None]
    ) -> AsyncGenerator[bytes]:
        samples = [self._begin(self.prompts[0]) for _ in range(self.body.n)]
        count, shows_tokens = 0, self.form.scored or self.form.numbered
        async with contextlib.aclosing(source) as events:
            for index in range(len(samples) if self.form.is_chat or self.form.numbered else 0):
                yield self.form.chunk(SamplePart(index=index, prompt=self.prompts[0]))
            async for event in events:
                if event is None:
                    yield KEEP_ALIVE
                elif event.type == "failed":
                    yield encode_event(
                        describe_error(400 if event.category == "user" else 500, event.error)
                    )
                    return
                elif event.type == "tokens" and samples[event.index].finish_reason is None:
                    piece = _read_event(samples[event.index], event)
                    count += len(piece.tokens)
                    if piece.text or piece.finish_reason or (piece.tokens and shows_tokens):
                        yield self.form.chunk(piece)
                if all(text.finish_reason is not None for text in samples):
                    break
        for last in self._last_events(count):
            yield last

    def _last_events(self, count: int) -> list[bytes]:
        options = self.body.stream_options
        return [
            *(
                [self.form.usage_chunk(self._count(count))]
                if options is not None and options.include_usage
                else []
            ),
            DONE,
        ]


def _read_event(text: SampleText, event: models.SampleStreamEvent) -> SamplePart:
    """Return the part of a sample that an event adds."""
    written = "".join(
        text.add(token, logprob)
        for token, logprob in zip(event.tokens, event.logprobs, strict=True)
    )
    if event.stop_reason is not None:
        written += text.finish(event.stop_reason)
    scores = text.drain_scores()
    return SamplePart(
        index=event.index,
        text=written,
        scores=scores,
        tokens=[score.word.token for score in scores],
        finish_reason=text.finish_reason,
    )


def _read_top(table: TopkLogprobs | None, count: int) -> list[list[tuple[int, float]]]:
    """Return the likeliest tokens at each of so many places."""
    if table is None:
        return [[] for _ in range(count)]
    return [
        list(zip(*row, strict=True))
        for row in zip(table.token_ids.tolist(), table.logprobs.tolist(), strict=True)
    ]


def open_completion(state: State, texts: Texts, body: CompletionBody) -> Conversation:
    """Read a completion request."""
    return Conversation(
        state=state,
        texts=texts,
        form=_form(state, body, is_chat=False, scored=body.logprobs is not None),
        body=body,
        prompts=[
            _encode_text(texts, body, one) if isinstance(one, str) else one for one in body.prompts
        ],
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        top=body.logprobs or 0,
        echo=body.echo,
    )


def open_chat(state: State, texts: Texts, body: ChatBody) -> Conversation:
    """Read a chat request."""
    return Conversation(
        state=state,
        texts=texts,
        form=_form(state, body, is_chat=True, scored=bool(body.logprobs)),
        body=body,
        prompts=[_encode_messages(texts, body)],
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        top=body.top_logprobs or 0,
        tools=body.callable_tools,
        continues=body.continue_final_message,
    )


def _form(state: State, body: GenerationBody, *, is_chat: bool, scored: bool) -> AnswerForm:
    numbered, created = body.return_token_ids, int(state.now())
    return AnswerForm(
        model=body.model, created=created, scored=scored, numbered=numbered, is_chat=is_chat
    )


def _encode_text(texts: Texts, body: GenerationBody, prompt: str) -> list[int]:
    if body.add_special_tokens is None and isinstance(body, CompletionBody):
        return texts.encode_prompt(prompt)
    return texts.encode(prompt, special=body.add_special_tokens is not False)


def _encode_messages(texts: Texts, body: ChatBody) -> list[int]:
    continues = body.continue_final_message
    starts = not continues and body.add_generation_prompt is not False
    special, options = bool(body.add_special_tokens), body.chat_template_kwargs or {}
    form = ChatForm(
        starts_answer=starts, continues_last=continues, adds_special=special, options=options
    )
    return texts.encode_chat(
        [message.to_turn() for message in body.messages], body.callable_tools, form
    )


MEDIA_TYPE = "application/json"


def v1_routes(state: State, unread: UnknownFields) -> list[Route]:
    """Make the routes; a tokenizer is loaded with the first request that needs it."""
    endpoints = Endpoints(state, unread)
    return [
        Route("/v1/models", _answer(state, endpoints.list_models), methods=["GET"]),
        Route("/v1/models/{model:path}", _answer(state, endpoints.get_model), methods=["GET"]),
        Route("/v1/completions", _answer(state, endpoints.complete), methods=["POST"]),
        Route("/v1/chat/completions", _answer(state, endpoints.chat), methods=["POST"]),
        Route("/tokenize", _answer(state, endpoints.tokenize), methods=["POST"]),
        Route("/detokenize", _answer(state, endpoints.detokenize), methods=["POST"]),
    ]


def _answer(state: State, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint behind the check of the credential, with errors in the form of OpenAI's
    API.
    """

    async def respond(request: Request) -> Response:
        state.accounts.admit("asample", read_any_credential(request.headers))
        return await endpoint(request)

    return answer_errors(respond, _refuse)


def _refuse(problem: APIProblem) -> Response:
    status = 400 if problem.status == 422 else problem.status  # as OpenAI's API has it
    param = "model" if status == 404 else None  # the only thing that a request of these names
    return _to_response(describe_error(status, problem.detail, param), status, problem.headers)


def read_any_credential(headers: Mapping[str, str]) -> bytes:
    """Return the bytes of ``X-API-Key``, or else of the bearer token in ``Authorization``; empty
    without either.
    """
    kind, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip().encode("latin-1") if kind.lower() == "bearer" else b""
    return read_credential(headers) or bearer


class Endpoints:
    """The endpoints of one server."""

    def __init__(self, state: State, unread: UnknownFields) -> None:
        self._state, self._unread = state, unread
        self._texts: dict[str, Texts] = {}

    async def list_models(self, request: Request) -> Response:
        """List the base models and every checkpoint of theirs that can be sampled from, the newest
        first.
        """
        engines = await self._state.engines()
        served = {engine.base_model for engine in engines}
        records = await self._state.offload_always(self._state.checkpoints.list)
        saved = [
            _describe_model(one.path, one.created_at)
            for one in records
            if one.kind == "sampler_weights" and one.engine_model in served
        ]
        return _to_response(
            {
                "object": "list",
                "data": [*(_describe_model(one.base_model, 0) for one in engines), *saved],
            }
        )

    async def get_model(self, request: Request) -> Response:
        """Describe one of them."""
        name, _ = await find_model(self._state, request.path_params["model"])
        return _to_response(_describe_model(name, 0))

    async def complete(self, request: Request) -> Response:
        """Continue with a text."""
        return await self._generate(request, CompletionBody, open_completion)

    async def chat(self, request: Request) -> Response:
        """Continue with a conversation."""
        return await self._generate(request, ChatBody, open_chat)

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of a text or of a conversation, as vLLM does."""
        _, body, headers = await self._receive(request, TokenizeBody)
        engine, texts = await self._open(body)
        tokens = (
            _encode_messages(texts, body)
            if body.prompt is None
            else _encode_text(texts, body, body.prompt)
        )
        found = {
            "count": len(tokens),
            "max_model_len": engine.max_context_length,
            "tokens": tokens,
            "token_strs": texts.names(tokens) if body.return_token_strs else None,
        }
        return _to_response(found, headers=headers)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of tokens, as vLLM does."""
        _, body, headers = await self._receive(request, DetokenizeBody)
        _, texts = await self._open(body)
        return _to_response({"prompt": texts.decode(body.tokens)}, headers=headers)

    async def _generate(
        self,
        request: Request,
        kind: type[Body],
        open_conversation: Callable[[State, Texts, Body], Conversation],
    ) -> Response:
        call, body, headers = await self._receive(request, kind)
        _, texts = await self._open(body)
        conversation = open_conversation(self._state, texts, body)
        if not conversation.body.stream:
            return _to_response(await conversation.answer(request, call), headers=headers)
        events = await conversation.open_stream(request, call)
        return StreamingResponse(events, headers={**STREAM_HEADERS, **headers})

    async def _receive(
        self, request: Request, kind: type[Body]
    ) -> tuple[APICall, Body, Mapping[str, str]]:
        """Read a request, and check it; returns the headers that name what was not read, too."""
        settings = self._state.settings
        call = await receive(
            request, OPERATIONS["asample"], settings.max_request_bytes, self._state.offload
        )
        body = read_body(call.content, kind)
        check_body(call.content, body, settings.max_samples)
        return (
            call,
            body,
            self._unread.check(
                request.scope["route"].path.removeprefix("/v1/"), call.content, kind
            ),
        )

    async def _open(self, body: GenerationBody | DetokenizeBody) -> tuple[Engine, Texts]:
        """Find the model of a request, whose name is resolved, and its tokenizer."""
        body.model, engine = await find_model(
            self._state, body.model or (await self._state.engines())[0].base_model
        )
        if engine.base_model not in self._texts:
            self._texts[engine.base_model] = await self._state.offload_always(
                lambda: load_texts(engine)
            )
        return engine, self._texts[engine.base_model]


def _describe_model(name: str, created: float) -> AnswerBody:
    return {"id": name, "object": "model", "created": int(created), "owned_by": "tinker"}


def _to_response(
    answer: AnswerBody, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(answer), status, dict(headers or {}), MEDIA_TYPE)
