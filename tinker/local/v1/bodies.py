"""The bodies of requests, and what of them this server refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from tinker_wire import models

from tinker.local.bodies import find_unknown_fields
from tinker.local.errors import APIProblem
from tinker_records import find_meant

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
            forms = "text, json_object, or json_schema with a json_schema"
            raise APIProblem(400, f"response_format.type is {self.type!r}; it must be {forms}")
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
