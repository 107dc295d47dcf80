"""Messages, tools and options in the form that chat templates read, whichever way they were
written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

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
