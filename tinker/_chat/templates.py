"""Text and tokens of a chat, as the tokenizer's chat template writes it, or as plain lines where it
has none.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from tinker._chat.messages import ChatTurn
from tinker._installation import install_command

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
