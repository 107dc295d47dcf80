"""Prompts and examples of chats and completions: their tokens, and how much each of them counts in
the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from tinker._chat.messages import (
    THOUGHTS,
    ChatTurn,
    read_messages,
    read_options,
    read_tools,
    read_weight,
)
from tinker._chat.templates import Chat, count_common, encode_prompt_text, has_template, with_end

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
