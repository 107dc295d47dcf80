"""The bodies of requests, and what of them this server refuses."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TypeVar, cast

import msgspec
from tinker_wire import models

from tinker.local.bodies import find_unknown_fields
from tinker.local.errors import APIProblem
from tinker_records import find_meant

MAX_TOP_LOGPROBS = 100
DEFAULT_MAX_TOKENS = 16  # of completions, as in OpenAI's API; a chat may fill the context
SCHEME = "tinker://"


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
        """Return the schema that the text has to follow; None for free text. Raises APIProblem 400 for another form."""
        if self.type == "json_schema" and self.json_schema is not None:
            return self.json_schema.schema
        if self.type not in ("text", "json_object"):
            forms = "text, json_object, or json_schema with a json_schema"
            raise APIProblem(400, f"response_format.type is {self.type!r}; it must be {forms}")
        return {"type": "object"} if self.type == "json_object" else None


class GenerationBody(msgspec.Struct, kw_only=True):
    """The fields of both kinds of requests. A missing field is None."""

    model: str
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
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

    @property
    def samples(self) -> int:
        """Return how many samples of each prompt are wanted."""
        return 1 if self.n is None else self.n

    @property
    def is_streamed(self) -> bool:
        return bool(self.stream)


class CompletionBody(GenerationBody, kw_only=True):
    """A text, or tokens, to continue with."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
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


class CalledFunction(msgspec.Struct, kw_only=True):
    """A function that was called, with its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A call of a tool."""

    id: str
    type: str = "function"
    function: CalledFunction

    def to_turn(self) -> dict[str, object]:
        """Return the call as chat templates read it: its arguments are values. Raises APIProblem 400 unless they are JSON."""
        name, arguments = self.function.name, self.function.arguments
        try:
            values = msgspec.json.decode(arguments or "{}")
        except msgspec.DecodeError as error:
            raise APIProblem(400, f"messages: the arguments of the call {self.id!r} are no JSON: {error}") from error
        return {"id": self.id, "type": self.type, "function": {"name": name, "arguments": values}}


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
        """Return the message as chat templates read it. Raises APIProblem 400 for anything but text and calls of tools."""
        turn: dict[str, object] = {"role": self.role, "content": self.read_text()}
        if self.tool_calls:
            turn["tool_calls"] = [call.to_turn() for call in self.tool_calls]
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


Body = TypeVar("Body", bound=GenerationBody)


# Parameters of OpenAI's API and of other servers that change the prompt, the text or the extra output. This server has none.
_OTHERS = str.split("""
add_generation_prompt allowed_token_ids audio bad_words bad_words_ids chat_template chat_template_kwargs
continue_final_message documents dry_multiplier ebnf epsilon_cutoff eta_cutoff grammar guided_choice guided_grammar
guided_json guided_regex ignore_eos include_stop_str_in_output json_schema length_penalty logits_processors
min_new_tokens min_tokens mirostat no_repeat_ngram_size no_stop_trim prompt_logprobs reasoning reasoning_effort regex
repeat_penalty return_token_ids return_tokens_as_token_ids skip_special_tokens spaces_between_special_tokens stop_regex
stop_token_ids structural_tag structured_outputs tfs_z thinking top_a truncate_prompt_tokens typical_p use_beam_search
verbosity web_search_options xtc_probability
""")

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

# Parameters of OpenAI's API and of other servers that leave the text as it is: they are reported and ignored.
_IGNORED = str.split("""
function_call metadata mirostat_eta mirostat_tau modalities parallel_tool_calls prediction prompt_cache_key
prompt_cache_retention request_id safety_identifier service_tier store
""")
_LIKENESS = 0.8  # of a misspelling to the name that was meant; "user_id" is no "user"


class UnknownParameter(APIProblem):
    """400: a parameter that is probably a misspelling of ``meant``."""

    def __init__(self, param: str, meant: str) -> None:
        super().__init__(400, f'unknown parameter "{param}"; did you mean "{meant}"?')
        self.param = param


def _asks_for(name: str, value: object) -> bool:
    """Return whether a value asks for something that the server would have to do."""
    return bool(value) if name not in _NEUTRAL else value is not None and value != _NEUTRAL[name]


@functools.cache
def with_others(kind: type[Body]) -> type[Body]:
    """Return the record with the parameters that this server does not have, as fields that are None."""
    fields: list[tuple[str, type, object]] = [(name, object, None) for name in _OTHERS]
    return cast("type[Body]", msgspec.defstruct(kind.__name__, fields, bases=(kind,), kw_only=True))


def check_names(content: bytes, kind: type[msgspec.Struct], other: type[msgspec.Struct]) -> None:
    """Raise UnknownParameter for the first misspelled parameter of a body.

    Names that resemble none are left alone, and so are those of ``other``, the body of the other endpoint.
    """
    known = {*kind.__struct_fields__, *_IGNORED}
    for name in find_unknown_fields(content, kind):
        if "." in name or name in _IGNORED or name in other.__struct_fields__:
            continue
        meant = find_meant(name, known, _LIKENESS)
        if meant is not None:
            raise UnknownParameter(name, meant)


def check_completion(body: CompletionBody, max_samples: int) -> None:
    """Raise APIProblem 400 for what this server cannot do, naming the field."""
    faults = [
        *_find_faults(body, max_samples),
        *_name_fields(body, ("suffix",)),
        *(["best_of must be n, or be left out"] if body.best_of not in (None, body.samples) else ()),
        *(["prompt is empty"] if not body.prompts or not all(body.prompts) else ()),
        *(["stream takes one prompt"] if body.is_streamed and len(body.prompts) > 1 else ()),
        *(["stream and echo cannot be combined"] if body.is_streamed and body.echo else ()),
        *_check_top(body.logprobs, "logprobs"),
    ]
    _refuse(faults)


def check_chat(body: ChatBody, max_samples: int) -> None:
    """Raise APIProblem 400 for what this server cannot do, naming the field."""
    faults = [
        *_find_faults(body, max_samples),
        *_name_fields(body, ("functions",)),
        *(["tool_choice must be auto or none"] if body.tools and body.tool_choice not in (None, "auto", "none") else ()),
        *(["messages is empty"] if not body.messages else ()),
        *_check_messages(body.messages),
        *_check_max_tokens("max_completion_tokens", body.max_completion_tokens),
        *(["top_logprobs needs logprobs"] if body.top_logprobs and not body.logprobs else ()),
        *_check_top(body.top_logprobs, "top_logprobs"),
    ]
    _refuse(faults)


def _check_messages(messages: Sequence[ChatMessage]) -> Iterator[str]:
    for index, message in enumerate(messages):
        if message.role not in _ROLES:
            yield f"messages[{index}].role is {message.role!r}; it must be one of {', '.join(_ROLES)}"
        elif message.content is None and message.role != "assistant":
            yield f"messages[{index}].content is missing"
        yield from (f"messages[{index}].{fault}" for fault in _name_fields(message, _LOST))


def _find_faults(body: GenerationBody, max_samples: int) -> Iterator[str]:
    if not 1 <= body.samples <= max_samples:
        yield f"n is {body.samples}; it must be from 1 to {max_samples}"
    yield from _check_max_tokens("max_tokens", body.max_tokens)
    yield from _name_fields(body, ("logit_bias", *_OTHERS))
    if "" in body.stops:
        yield "stop contains an empty text"


def _name_fields(body: GenerationBody | ChatMessage, names: Sequence[str]) -> list[str]:
    """Name the fields that ask for something; neutral values, such as zero, are left out."""
    return [f"{name} is not supported by this server" for name in names if _asks_for(name, getattr(body, name, None))]


def _check_max_tokens(name: str, count: int | None) -> list[str]:
    return [] if count is None or count >= 0 else [f"{name} is {count}; it must be at least 0"]


def _check_top(count: int | None, name: str) -> list[str]:
    within = count is None or 0 <= count <= MAX_TOP_LOGPROBS
    return [] if within else [f"{name} is {count}; it must be 0 to {MAX_TOP_LOGPROBS}"]


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise APIProblem(400, "; ".join(faults))
