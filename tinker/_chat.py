"""From messages to tokens and weights, the same for training and serving."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from tinker._basics.installation import install_command

ChatTurn: TypeAlias = Mapping[str, Any]
#: The keys of a thought; transformers gives a template whichever it reads.
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
LARGEST_WEIGHT = 3.4e38  # what float32 has room for
_WEIGHTS = ("weight", "train", "trainable")

# What was given instead of a list of messages, by one of its keys.
_NOT_A_LIST = {
    "messages": """: take its ["messages"]""",
    "prompt": """: use tinker.data.from_completion(tokenizer, row["prompt"], row["completion"])""",
    "role": ": put the message in a list",
}
_CHOSEN_HERE = (
    "add_generation_prompt",
    "chat_template",
    "conversation",
    "messages",
    "return_dict",
    "tokenize",
    "tools",
)


def read_messages(messages: object) -> list[dict[str, Any]]:
    """Return messages whose contents are texts, and whose calls have values. ValueError names the
    first that is wrong.
    """
    kind = type(messages)
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        fields = cast("Mapping[str, object]", messages if isinstance(messages, Mapping) else {})
        advice = next((text for name, text in _NOT_A_LIST.items() if name in fields), "")
        raise ValueError(f'"messages" must be a list, got {kind.__name__}{advice}')
    read = [
        _read_message(position, message)
        for position, message in enumerate(cast("Iterable[object]", messages))
    ]
    if not read:
        raise ValueError('"messages" is empty')
    return read


def _read_message(position: int, message: object) -> dict[str, Any]:
    if isinstance(message, list):
        raise ValueError(
            f"message {position} is a list; if it is a chat of its own, make an "
            "example of each chat"
        )
    given = cast("Mapping[str, Any]", message if isinstance(message, Mapping) else {})
    fields = {name: value for name, value in given.items() if value is not None}
    if not isinstance(fields.get("role"), str):
        got = f"; it has {', '.join(fields)}" if fields else ""
        of_sharegpt = (
            ': rename "from" to "role" (human to user, gpt to assistant), and "value" to "content"'
        )
        advice = (
            of_sharegpt if "from" in fields else '; a message is {"role": "user", "content": "Hi"}'
        )
        raise ValueError(f'message {position} has no "role"{got}{advice}')
    if "function_call" in fields:
        now = '"tool_calls": [{"type": "function", "function": {"name": ..., "arguments": ...}}]'
        raise ValueError(
            f'message {position} has "function_call", which no chat template reads; write {now}'
        )
    calls = fields.pop("tool_calls", None)
    if calls:
        fields["tool_calls"] = _read_calls(position, calls)
    content = fields.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"message {position} has parts that are not text; for images, see docs/vision.md"
            )
        content = "".join(str(part.get("text") or "") for part in parts)
    if content is None and (calls or any(name in fields for name in THOUGHTS)):
        content = ""
    if not isinstance(content, str):
        raise ValueError(f'message {position}: "content" must be text')
    return {**fields, "content": content}


def _read_calls(position: int, calls: object) -> list[dict[str, Any]]:
    """Return calls of tools whose arguments are values, not the text of them that OpenAI's API
    returns.
    """
    name = f'message {position}: "tool_calls"'
    calls = _decode(calls, name)
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) for call in cast("list[object]", calls)
    ):
        raise ValueError(f"{name} must be a list of objects")
    return [_read_call(name, call) for call in cast("list[dict[str, Any]]", calls)]


def _read_call(name: str, call: dict[str, Any]) -> dict[str, Any]:
    if isinstance(call.get("function"), dict):
        return {**call, "function": _read_call(name, call["function"])}
    arguments = call.get("arguments")
    values: object = (
        _decode(arguments, f"{name}: the arguments of {call.get('name')!r}") if arguments else {}
    )
    if not isinstance(values, dict):
        raise ValueError(
            f"{name}: the arguments of {call.get('name')!r} must be an object, got "
            f"{type(values).__name__}"
        )
    return {**call, "arguments": cast("dict[str, Any]", values)}


def read_tools(tools: object) -> list[Any]:
    """Return the descriptions of tools, which some datasets have as the text of a JSON value.
    ValueError for anything else.
    """
    given = _decode(tools, '"tools"') or ()
    if not isinstance(given, Sequence):
        raise ValueError(f'"tools" must be a list, got {type(given).__name__}')
    return list(cast("Sequence[object]", given))


def read_options(*given: object) -> dict[str, object]:
    """Join the options of a chat template; later ones count. ValueError for those that are not the
    user's to choose.
    """
    joined: dict[str, object] = {}
    for options in given:
        values = _decode(options, '"chat_template_kwargs"')
        if values is not None and not isinstance(values, Mapping):
            raise ValueError(
                f'"chat_template_kwargs" must be an object, got {type(values).__name__}'
            )
        joined |= cast("Mapping[str, object]", values or {})
    if wrong := next((name for name in _CHOSEN_HERE if name in joined), None):
        raise ValueError(f'"chat_template_kwargs" cannot have {wrong!r}')
    return joined


def read_weight(position: int, message: ChatTurn) -> float:
    """Return how much an answer counts: its ``weight``, as OpenAI has it, or whether it is learned;
    else 1.
    """
    name = next((name for name in _WEIGHTS if name in message), None)
    weight = 1 if name is None else message[name]
    if not isinstance(weight, (int, float)) or not abs(weight) <= LARGEST_WEIGHT:
        raise ValueError(
            f"message {position} has the {name} {weight!r:.9}; it is a finite number, such as 0 "
            'for "not learned"'
        )
    return float(weight)


def _decode(value: object, name: str) -> object:
    """Return what the text of a JSON value stands for; anything but a text as it is."""
    if not isinstance(value, str):
        return value
    try:
        return cast("object", json.loads(value))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON: {error}") from None


_PLAIN_ROLES = "system, developer, user, assistant, tool"


def write_plain_chat(messages: Sequence[ChatTurn], *, is_prompt: bool = True) -> str:
    """Return a chat for a model without a chat template: a line for each message, and in a prompt
    the start of the answer.

    >>> write_plain_chat([{"role": "user", "content": "Hello"}])
    'User: Hello\\nAssistant:'
    """
    for position, message in enumerate(messages):
        if (role := message["role"]) not in _PLAIN_ROLES.split(", "):
            raise ValueError(
                f'message {position} has the role "{role}"; without a '
                f"chat template use {_PLAIN_ROLES}"
            )
        if "tool_calls" in message:
            raise ValueError(
                f"message {position} has tool_calls, which need a tokenizer with a chat template"
            )
    lines = [f"{message['role'].capitalize()}: {message['content']}\n" for message in messages]
    return "".join(lines) + ("Assistant:" if is_prompt else "")


def has_template(tokenizer: Any) -> bool:
    """Return whether there is a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


class _Form(NamedTuple):
    """What a template reads and writes: contents as parts, arguments of calls as text, something
    behind an answer.
    """

    takes_parts: bool = False
    takes_text_arguments: bool = False
    writes_end: bool = False

    def shape(self, message: ChatTurn) -> dict[str, Any]:
        """Return a message in this form."""
        shaped = dict(message)
        if self.takes_parts:
            shaped["content"] = [{"type": "text", "text": message["content"]}]
        if self.takes_text_arguments and "tool_calls" in message:
            shaped["tool_calls"] = [_with_text(call) for call in message["tool_calls"]]
        return shaped


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    if "function" in call:
        return {**call, "function": _with_text(call["function"])}
    return {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}


# Texts that no template has, to see where it writes them.
_QUESTION, ANSWER_PROBE, _NAME, _VALUE = "q0zq", "q0za", "q0zn", "q0zv"
_PROBE = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": ANSWER_PROBE}]
_CALL = {
    "id": "call00000",
    "type": "function",
    "function": {"name": _NAME, "arguments": {"key": _VALUE}},
}


@functools.lru_cache(maxsize=64)
def _find_form(tokenizer: Any, template: str) -> _Form:
    """Try what the template of a tokenizer reads."""

    def writes(form: _Form, answer: dict[str, Any], *expected: str) -> str | None:
        try:
            text = _apply(
                tokenizer, [form.shape(_PROBE[0]), form.shape(answer)], {}, is_prompt=False
            )
        except ValueError:
            return None
        return text if all(part in text for part in expected) else None

    for form in (_Form(), _Form(takes_parts=True)):
        if (text := writes(form, _PROBE[1], _QUESTION, ANSWER_PROBE)) is not None:
            form = form._replace(writes_end=bool(text.rpartition(ANSWER_PROBE)[2].strip()))
            break
    else:
        form = _Form(writes_end=True)
    called, as_text = (
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        form._replace(takes_text_arguments=True),
    )
    is_read = writes(form, called, _VALUE) is not None or writes(as_text, called, _VALUE) is None
    return form if is_read else as_text


def _apply(
    tokenizer: Any, messages: Sequence[ChatTurn], options: Mapping[str, object], *, is_prompt: bool
) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=is_prompt, **options
            )
        )
    except Exception as error:  # templates may raise anything
        if find_spec("jinja2") is None:
            raise ImportError(
                f"chat templates need jinja2: {install_command('tokenizers')}"
            ) from error
        raise ValueError(f"the chat template refuses these messages: {error}") from error


@functools.lru_cache(maxsize=64)
def _find_separator(tokenizer: Any, size: int) -> re.Pattern[str] | None:
    """Return where texts may be cut to encode the pieces apart, with equal tokens: at added tokens
    without rules of their own.

    So what prompts and answers have in common is encoded once. None where tokens may differ. A
    tokenizer of another ``size``, which has got more tokens, is another one.
    """
    added: list[Any] = list(getattr(tokenizer, "added_tokens_decoder", {}).values())
    if not getattr(tokenizer, "is_fast", False) or any(
        one.lstrip or one.rstrip or one.single_word for one in added
    ):
        return None
    words = sorted((one.content for one in added), key=len, reverse=True)
    separator = re.compile(f"({'|'.join(map(re.escape, words))})")
    probe = "".join(f"{word} a{word}\n\na{word}a " for word in words)
    apart = [
        token
        for piece in separator.split(probe)
        if piece
        for token in tokenizer.encode(piece, add_special_tokens=False)
    ]
    return (
        separator
        if words and apart == list(tokenizer.encode(probe, add_special_tokens=False))
        else None
    )


@functools.lru_cache(maxsize=1024)
def _encode_piece(tokenizer: Any, size: int, piece: str) -> Sequence[int]:
    backend = tokenizer.backend_tokenizer
    # without the places of tokens, which take a quarter of the time
    if backend.truncation is None and backend.padding is None:
        return list(backend.encode_batch_fast([piece], add_special_tokens=False)[0].ids)
    return list(tokenizer.encode(piece, add_special_tokens=False))


@dataclass(frozen=True)
class Chat:
    """A chat with the tokenizer that writes it."""

    tokenizer: Any
    messages: Sequence[ChatTurn]
    tools: Sequence[Any]
    options: Mapping[str, object]

    def render(self, messages: Sequence[ChatTurn], *, is_prompt: bool) -> str:
        """Return the text of messages, in a prompt with the start of an answer. ValueError where
        the template refuses them.
        """
        if not has_template(self.tokenizer):
            if self.tools:
                raise ValueError("tools need a tokenizer with a chat template; this one has none")
            return write_plain_chat(messages, is_prompt=is_prompt)
        shaped = [self._form.shape(message) for message in messages]
        tools = {"tools": list(self.tools)} if self.tools else {}
        return _apply(self.tokenizer, shaped, {**self.options, **tools}, is_prompt=is_prompt)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of what was rendered."""
        if not has_template(self.tokenizer):
            return encode_prompt_text(self.tokenizer, text)
        size = getattr(self.tokenizer, "__len__", int)()
        separator = _find_separator(self.tokenizer, size)
        if separator is None:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return [
            token
            for piece in separator.split(text)
            if piece
            for token in _encode_piece(self.tokenizer, size, piece)
        ]

    @property
    def _form(self) -> _Form:
        return _find_form(self.tokenizer, str(self.tokenizer.chat_template))

    def write_prompt(self, at: int) -> str:
        """Return what stands before the answer at a position, up to where the answer begins."""
        if at or not has_template(self.tokenizer):
            return self.render(self.messages[:at], is_prompt=True)
        # templates do not write an empty chat
        return self.render(_PROBE[1:], is_prompt=False).partition(ANSWER_PROBE)[0]

    def find_opening(self, at: int, prompt: str) -> str:
        """Return with what a prompt begins the answer at a position, behind the
        messages before it.
        """
        history = self.render(self.messages[:at], is_prompt=False) if at else ""
        return prompt[count_common(history, prompt) :]

    def find_end(self, at: int) -> str | None:
        """Return what ends the answer at a position where the template writes nothing behind it;
        None where nothing does.

        That is the special token with which the next message begins; behind the last one, else the
        tokenizer's end of a text.
        """
        if not has_template(self.tokenizer) or self._form.writes_end:
            return ""
        following = "tool" if "tool_calls" in self.messages[at] else "user"
        if not (is_last := at + 1 == len(self.messages)):
            following = self.messages[at + 1]["role"]
        probe = [*_PROBE, {"role": following, "content": _QUESTION}]
        try:
            tokens = self.encode(self.render(probe, is_prompt=False).partition(ANSWER_PROBE)[2])
        except ValueError:
            tokens = []
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).items()
        special = {token for token, entry in added if entry.special} | set(
            getattr(self.tokenizer, "all_special_ids", ())
        )
        if tokens and tokens[0] in special:
            return str(self.tokenizer.convert_ids_to_tokens(tokens[0]))
        end: str | None = getattr(self.tokenizer, "eos_token", None)
        return end if is_last else None


def count_common(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many letters or tokens are the same before the first that differs."""
    return next(
        (at for at, (one, other) in enumerate(zip(first, second)) if one != other),
        min(len(first), len(second)),
    )


def encode_prompt_text(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text to continue: those that ``encode`` gives, without the end that
    some tokenizers append.
    """
    tokens = list(tokenizer.encode(text))
    if tokens and tokens[-1] in {
        getattr(tokenizer, "eos_token_id", None),
        *getattr(tokenizer, "all_special_ids", ()),
    }:
        without = list(tokenizer.encode(text, add_special_tokens=False))
        if not without or tokens[-len(without) :] != without:
            tokens.pop()
    return tokens


def with_end(tokenizer: Any, tokens: list[int]) -> list[int]:
    """Append the token that ends a text, so that the model learns to stop."""
    end: int | None = tokenizer.eos_token_id
    return tokens if end is None or tokens[-1:] == [end] else [*tokens, end]


#: How a prompt ends: with the start of an answer, behind its last message, or within it.
Ending: TypeAlias = Literal["answer", "message", "open"]


class Example(NamedTuple):
    """Tokens, and the weight of each in the loss."""

    tokens: list[int]
    weights: list[float]


class Unwritten(NamedTuple):
    """A field of a chat that the template does not write, and what to say of it."""

    field: str
    message: str


class Encoded(NamedTuple):
    """Examples, and what is not in them."""

    examples: list[Example]
    unwritten: list[Unwritten]


def render_prompt(
    tokenizer: Any,
    messages: object,
    tools: object = None,
    options: Mapping[str, object] | None = None,
    *,
    ending: Ending = "answer",
) -> tuple[Chat, str, list[Unwritten]]:
    """Return a chat to be continued, its text, and what is not in it. ValueError where it cannot be
    written.
    """
    chat = _read_chat(tokenizer, messages, tools, options)
    is_prompt, continued = ending == "answer", chat
    if ending == "open" and has_template(tokenizer):
        continued = replace(chat, options={**chat.options, "continue_final_message": True})
    text = continued.render(chat.messages, is_prompt=is_prompt)
    if ending == "open" and not has_template(tokenizer):
        text = text.removesuffix("\n")
    return chat, text, list(_find_unwritten(chat, text, is_prompt=is_prompt))


def encode_prompt(
    tokenizer: Any,
    messages: object,
    tools: object = None,
    options: Mapping[str, object] | None = None,
) -> tuple[list[int], list[Unwritten]]:
    """Encode a chat that ends with the start of an answer; returns also what is not in it.
    ValueError as above.
    """
    chat, text, unwritten = render_prompt(tokenizer, messages, tools, options)
    return chat.encode(text), unwritten


def encode_examples(
    tokenizer: Any,
    messages: object,
    tools: object = None,
    options: Mapping[str, object] | None = None,
    *,
    first: int = 0,
) -> Encoded:
    """Encode a chat with a weight of 1 for what the assistant wrote from message ``first`` on, and
    0 for what it read.

    An answer follows exactly the tokens of the prompt that asks for it. Several are in one example
    as long as each prompt begins with what is there already; where the template changes earlier
    messages once later ones come, another begins. A message may have its own weight. ValueError
    without an answer, and where the template writes nothing of one.
    """
    chat = _read_chat(tokenizer, messages, tools, options)
    answers = _find_answers(chat.messages, first)
    examples: list[Example] = []
    unwritten: list[Unwritten] = []
    written = ""
    for at, weight in answers.items():
        try:
            before, written = chat.write_prompt(at), _write_answer(chat, at, unwritten)
        except ValueError:
            if at or len(answers) == 1:
                raise
            unwritten.append(
                Unwritten(
                    "first", "the chat template begins no chat with an answer, so it is only read"
                )
            )
            continue
        prompt, answer = _split(chat, at, before, written, unwritten)
        if not examples or prompt[: len(examples[-1].tokens)] != examples[-1].tokens:
            examples.append(Example([], []))
        tokens, weights = examples[-1]
        weights += [0.0] * (len(prompt) - len(tokens)) + [weight] * len(answer)
        tokens += prompt[len(tokens) :] + answer
    if not has_template(tokenizer):
        tokens, weights = examples[-1]
        tokens[:] = with_end(tokenizer, tokens)
        weights += weights[-1:] * (len(tokens) - len(weights))
    unwritten += _find_unwritten(chat, written, is_prompt=False)
    return Encoded(examples, unwritten)


def encode_completion(
    tokenizer: Any,
    prompt: object,
    completion: object,
    tools: object = None,
    options: Mapping[str, object] | None = None,
    *,
    name: str = "completion",
) -> Encoded:
    """Encode a prompt and its completion, texts or messages, with a weight of 1 for the tokens of
    the completion.

    ValueError for anything else; ``name`` is what the completion is called there.
    """
    kinds = [type(prompt), type(completion)]
    if kinds not in ([str, str], [list, list]):
        got = " and ".join("null" if one is type(None) else one.__name__ for one in kinds)
        raise ValueError(
            f"the prompt and the {name} must both be strings, or both lists of messages, got {got}"
        )
    if not completion:
        raise ValueError(f"the {name} is empty")
    if kinds == [list, list]:
        asked, answered = cast("list[list[ChatTurn]]", [prompt, completion])
        return encode_examples(tokenizer, asked + answered, tools, options, first=len(asked))
    before = encode_prompt_text(tokenizer, cast("str", prompt))
    after = with_end(tokenizer, list(tokenizer.encode(completion, add_special_tokens=False)))
    return Encoded([Example(before + after, [0.0] * len(before) + [1.0] * len(after))], [])


def take_one(encoded: Encoded) -> Example:
    """Return the only example. ValueError where there are several."""
    if len(encoded.examples) > 1:
        other = f"tinker.data.examples_from_messages makes {len(encoded.examples)} examples of it"
        raise ValueError(
            f"the chat template changes earlier messages when later ones come: {other}"
        )
    return encoded.examples[0]


def _read_chat(
    tokenizer: Any, messages: object, tools: object, options: Mapping[str, object] | None
) -> Chat:
    return Chat(tokenizer, read_messages(messages), read_tools(tools), read_options(options))


def _find_answers(messages: Sequence[ChatTurn], first: int) -> dict[int, float]:
    """Return the positions of the answers that count and the weight of each; where none counts, the
    last answer.
    """
    answers = {
        at: read_weight(at, messages[at])
        for at in range(len(messages))[first:]
        if messages[at]["role"] == "assistant"
    }
    if not answers:
        found = ", ".join(dict.fromkeys(str(message["role"]) for message in messages[first:]))
        raise ValueError(
            'no message has the role "assistant", so there is nothing to learn; '
            f"the roles are {found}"
        )
    return {at: weight for at, weight in answers.items() if weight} or dict([answers.popitem()])


def _write_answer(chat: Chat, at: int, unwritten: list[Unwritten]) -> str:
    """Return the chat up to the end of an answer, which is learned."""
    end = chat.find_end(at)
    if end is None:
        unwritten.append(
            Unwritten(
                "end",
                "the chat template writes nothing behind answers, so their end is not learned",
            )
        )
    return chat.render(chat.messages[: at + 1], is_prompt=False) + (end or "")


def _split(
    chat: Chat, at: int, before: str, written: str, unwritten: list[Unwritten]
) -> tuple[list[int], list[int]]:
    """Return the tokens of a prompt, and those of the answer behind it. ValueError where the answer
    is empty.
    """
    prompt, whole = chat.encode(before), chat.encode(written)
    shared = len(before) if written.startswith(before) else count_common(before, written)
    _check_answer(chat, at, written[shared:], unwritten)
    if whole[: len(prompt)] == prompt:
        return prompt, whole[len(prompt) :]
    # a token reaches over the end of the prompt, where none does when an answer is sampled
    if shared == len(before):
        return prompt, list(chat.tokenizer.encode(written[shared:], add_special_tokens=False))
    opening = chat.find_opening(at, before)
    if len(before) - len(opening) > shared:
        raise ValueError(f"the chat template changes earlier messages when message {at} comes")
    advice = (
        'whether it thinks is chosen by "chat_template_kwargs", such as {"enable_thinking": '
        'false}, and "reasoning_content"'
    )
    message = (
        f"the chat template ends a prompt with {opening!r}, and begins an answer "
        f"in another way; {advice}"
    )
    unwritten.append(Unwritten("opening", message))
    count = count_common(prompt, whole)
    return whole[:count], whole[count:]


def _check_answer(chat: Chat, at: int, text: str, unwritten: list[Unwritten]) -> None:
    """Take note of what is not written of an answer; ValueError where nothing is."""
    parts = _list_parts(chat.messages[at])
    missing = [part.name for part in parts if not _is_written(chat, at, part, text)]
    if missing and len(missing) == len(parts):
        raise ValueError(
            f"the chat template writes nothing of message {at}: not its "
            f"{' and '.join(dict.fromkeys(missing))}"
        )
    thought, is_there, _ = str(chat.messages[at]["content"]).rpartition("</think>")
    if is_there and thought.rpartition("<think>")[2].strip() not in text:
        missing.append("content before </think>")
    unwritten += [
        Unwritten(name, f"the chat template does not write all {name} of answers")
        for name in missing
    ]


class _ChatPart(NamedTuple):
    """A field of a message that says something, or one call of a tool; texts of it, and the message
    without it.
    """

    name: str
    texts: Sequence[str]
    without: ChatTurn


def _list_parts(message: ChatTurn) -> list[_ChatPart]:
    calls: list[Any] = message.get("tool_calls", [])
    return [
        *(
            _ChatPart(
                name,
                [text],
                {"content": "", **{key: value for key, value in message.items() if key != name}},
            )
            for name in ("content", *THOUGHTS)
            if (text := str(message.get(name, "")).strip())
        ),
        *(
            _ChatPart(
                "tool_calls",
                _find_words(call),
                {**message, "tool_calls": calls[:at] + calls[at + 1 :]},
            )
            for at, call in enumerate(calls)
        ),
    ]


def _find_words(tool: object) -> list[str]:
    """Return words that are written of a tool, or of a call of one: its name, and its description
    or the arguments.
    """
    if not isinstance(tool, dict):
        return [str(getattr(tool, "__name__", tool))]
    fields = cast("dict[str, Any]", tool)
    fields = fields.get("function", fields)
    return [
        str(fields.get("name", "")),
        str(fields.get("description", "")),
        *map(str, fields.get("arguments", {}).values()),
    ]


def _is_written(chat: Chat, at: int, part: _ChatPart, where: str) -> bool:
    """Return whether a part of a message is written: its texts are there, or without it the chat
    reads otherwise.
    """
    if all(text in where for text in part.texts):
        return True
    try:
        shown, hidden = ([*chat.messages[:at], last] for last in (chat.messages[at], part.without))
        return chat.render(shown, is_prompt=False) != chat.render(hidden, is_prompt=False)
    except ValueError:  # the template needs it
        return True


def _find_unwritten(chat: Chat, text: str, *, is_prompt: bool) -> Iterator[Unwritten]:
    """Yield what of the roles, the tools and the options is nowhere in the text of a chat."""
    for at, message in enumerate(chat.messages):
        parts = [part for part in _list_parts(message) if part.name not in THOUGHTS]
        if parts and not any(_is_written(chat, at, part, text) for part in parts):
            yield Unwritten(
                "role",
                f'the chat template does not write this message of the role "{message["role"]}"',
            )
    if not all(word in text for tool in chat.tools for word in _find_words(tool)):
        without = replace(chat, tools=())
        if without.render(chat.messages, is_prompt=is_prompt) == chat.render(
            chat.messages, is_prompt=is_prompt
        ):
            yield Unwritten("tools", 'the chat template does not write "tools"')
    for name in chat.options:
        if not has_template(chat.tokenizer) or name not in str(chat.tokenizer.chat_template):
            yield Unwritten("chat_template_kwargs", f'the chat template does not read "{name}"')
