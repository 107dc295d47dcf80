"""The answers: texts, choices and log-probabilities as clients for OpenAI's API read them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import attrs
import msgspec

from tinker._chat import ChatTurn
from tinker.local.errors import describe_field_errors
from tinker.local.v1.bodies import ChatBody, CompletionBody, with_others
from tinker.local.v1.texts import TokenScore

AnswerBody: TypeAlias = dict[str, Any]
DONE = b"data: [DONE]\n\n"


@attrs.frozen
class TokenUsage:
    """The tokens of a request."""

    prompt: int
    completion: int

    def describe(self) -> AnswerBody:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


@attrs.frozen(kw_only=True)
class AnswerForm:
    """The form of one answer: ``scored`` says whether log-probabilities are wanted."""

    model: str
    created: int
    scored: bool
    is_chat: bool
    answer_id: str = attrs.field(factory=lambda: uuid.uuid4().hex)

    def whole(self, choices: Sequence[AnswerBody], usage: TokenUsage) -> AnswerBody:
        return {**self._head(), "choices": list(choices), "usage": usage.describe()}

    def choice(
        self, index: int, text: str, scores: Sequence[TokenScore], finish_reason: str, turn: ChatTurn | None = None
    ) -> AnswerBody:
        """Describe one finished sample; ``turn`` is what it is as a message with calls of tools."""
        content: AnswerBody = {"text": text}
        if self.is_chat:
            content = {"message": {"role": "assistant", "content": text} if turn is None else describe_turn(turn)}
        return {"index": index, **content, "logprobs": self._scores(scores), "finish_reason": finish_reason}

    def chunk(
        self,
        index: int,
        text: str,
        scores: Sequence[TokenScore],
        finish_reason: str | None,
        turn: ChatTurn | None = None,
    ) -> bytes:
        """Encode one event of a stream."""
        content: AnswerBody = {"text": text}
        if turn is not None:
            content = {"delta": describe_turn(turn)}
        elif self.is_chat:
            content = {"delta": {"content": text} if text or finish_reason is None else {}}
        return self._encode_chunk({"index": index, **content, "logprobs": self._scores(scores), "finish_reason": finish_reason})

    def first_chunk(self, index: int) -> bytes:
        """Encode the event that says whose words follow; chats alone have one."""
        delta = {"role": "assistant", "content": ""}
        return self._encode_chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})

    def usage_chunk(self, usage: TokenUsage) -> bytes:
        """Encode the event with the counts."""
        return self._encode_chunk(usage=usage.describe())

    def _encode_chunk(self, *choices: AnswerBody, **more: AnswerBody) -> bytes:
        return encode_event({**self._head(".chunk"), "choices": list(choices), **more})

    def _head(self, chat_part: str = "") -> AnswerBody:
        """Return the members before the choices. ``chat_part`` is added to the object of a chat."""
        prefix, kind = ("chatcmpl", f"chat.completion{chat_part}") if self.is_chat else ("cmpl", "text_completion")
        return {"id": f"{prefix}-{self.answer_id}", "object": kind, "created": self.created, "model": self.model}

    def _scores(self, scores: Sequence[TokenScore]) -> AnswerBody | None:
        if not self.scored or not scores:
            return None
        return {"content": [_describe_token(score) for score in scores]} if self.is_chat else describe_columns(scores)


def describe_turn(turn: ChatTurn) -> AnswerBody:
    """Describe a message that calls tools."""
    calls = [
        {"index": index, "id": f"call_{uuid.uuid4().hex}", "type": "function", "function": _describe_call(call["function"])}
        for index, call in enumerate(turn["tool_calls"])
    ]
    return {"content": None, **turn, "role": "assistant", "tool_calls": calls}


def _describe_call(function: AnswerBody) -> AnswerBody:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return {"name": function["name"], "arguments": text}


def _describe_token(score: TokenScore) -> AnswerBody:
    return {
        "token": score.text,
        "logprob": score.logprob,
        "bytes": list(score.text.encode()),
        "top_logprobs": [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in score.top],
    }


def describe_columns(scores: Sequence[TokenScore]) -> AnswerBody:
    """Describe scored tokens as completions have them: a list for each property."""
    ends = accumulate((len(score.text) for score in scores), initial=0)
    return {
        "tokens": [score.text for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_describe_top(score) for score in scores],
        "text_offset": list(ends)[:-1],
    }


def _describe_top(score: TokenScore) -> dict[str, float] | None:
    """Return the likeliest tokens and the token itself; of several that read alike, the likeliest."""
    if score.logprob is None:
        return None
    found = dict(reversed(score.top))
    return {**found, score.text: max(score.logprob, found.get(score.text, score.logprob))}


def encode_event(value: AnswerBody) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


# What a refusal begins with, such as "messages[0].role" or "top_p".
_NAMED = re.compile(r"(?P<field>\w+)(\[\d+\])?(\.\w+)?")
_FIELDS = frozenset({*with_others(CompletionBody).__struct_fields__, *ChatBody.__struct_fields__})


def describe_error(status: int, detail: object, param: str | None = None) -> AnswerBody:
    """Return an error in the form of OpenAI's API. By default the parameter is the field that the text begins with."""
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    codes = {401: "invalid_api_key", 404: "model_not_found" if param == "model" else "not_found"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    message = detail
    if isinstance(detail, str):
        named = _NAMED.match(detail)
        if named is not None and named["field"] in _FIELDS and kind == "invalid_request_error":
            param = named[0]
    else:
        message, param = describe_field_errors(detail) or (msgspec.json.encode(detail).decode(), None)
    return {"error": {"message": message, "type": kind, "param": param, "code": codes.get(status)}}
