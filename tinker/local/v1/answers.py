"""The answers: texts, choices and log-probabilities as clients for OpenAI's API read them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import msgspec

from tinker._chat import ChatTurn
from tinker.local.errors import describe_field_errors
from tinker.local.v1.bodies import ChatBody, CompletionBody
from tinker.local.v1.texts import TokenScore, Word

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
        choices = [self._describe(piece, "message") for piece in pieces]
        return {
            **self._head(),
            "choices": choices,
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
        if not self.scored or not scores:
            return None
        return (
            {"content": [_describe_token(score) for score in scores]}
            if self.is_chat
            else describe_columns(scores)
        )


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


def _describe_token(score: TokenScore) -> AnswerBody:
    return {
        **_describe_word(score.word, score.logprob),
        "top_logprobs": [_describe_word(*one) for one in score.top],
    }


def describe_columns(scores: Sequence[TokenScore]) -> AnswerBody:
    """Describe scored tokens as completions have them: a list for each property."""
    return {
        "tokens": [score.word.text for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_describe_top(score) for score in scores],
        "text_offset": [score.offset for score in scores],
    }


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
