"""Small chats of every form that a line of data has, with a word of its own in each field."""

from __future__ import annotations

from typing import Any, NamedTuple

Message = dict[str, Any]


class Chat(NamedTuple):
    """Messages, and what is given with them."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    options: dict[str, Any] | None = None


def _user(text: Any = "Two?") -> Message:
    return {"role": "user", "content": text}


def _answer(text: Any = "Four.", **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def _call(name: str, arguments: str, identity: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(text: str, identity: str, name: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": identity, "name": name}


def _parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Which"}},
    "required": ["city"],
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "Tells it", "parameters": _PARAMETERS},
    }
    for name in ("weather", "clock")
]
_PARIS = _call("weather", '{"city": "Paris"}', "callaaaa1")
_LIMA = _call("clock", '{"city": "Lima"}', "callbbbb2")

_FORECAST = _call(
    "weather",
    '{"city": "Paris", "days": 3, "units": {"of": ["Celsius", null]}, "now": true}',
    "callcccc3",
)

CHATS = {
    "one": Chat([_user(), _answer()]),
    "system": Chat([{"role": "system", "content": "Briefly."}, _user(), _answer()]),
    "turns": Chat(
        [_user(), _answer(), _user("Three?"), _answer("Six."), _user("Five?"), _answer("Ten.")]
    ),
    "newline before": Chat([_user(), _answer("\nFour.")]),
    "newlines before": Chat([_user(), _answer("\n\n```\nFour.")]),
    "newline behind": Chat([_user(), _answer("Four.\n")]),
    "newlines behind": Chat([_user(), _answer("Four.\n\n"), _user("Three?"), _answer("Six.\n")]),
    "thought": Chat([_user(), _answer(reasoning_content="Pondering")]),
    "thoughts": Chat(
        [
            _user(),
            _answer(reasoning_content="Pondering"),
            _user("Three?"),
            _answer("Six.", reasoning_content="Musing"),
        ]
    ),
    "thought in the text": Chat([_user(), _answer("<think>\nPondering\n</think>\n\nFour.")]),
    "call": Chat([_user(), _answer(None, tool_calls=[_PARIS])], TOOLS),
    "call and text": Chat([_user(), _answer("Four.", tool_calls=[_PARIS])], TOOLS),
    "call, empty text": Chat([_user(), _answer("", tool_calls=[_PARIS])], TOOLS),
    "result": Chat(
        [
            _user(),
            _answer(None, tool_calls=[_PARIS]),
            _result("Sunny", "callaaaa1", "weather"),
            _answer("Six."),
        ],
        TOOLS,
    ),
    "calls": Chat([_user(), _answer(None, tool_calls=[_PARIS, _LIMA])], TOOLS),
    "results": Chat(
        [
            *(_user(), _answer(None, tool_calls=[_PARIS, _LIMA])),
            *(_result("Sunny", "callaaaa1", "weather"), _result("Noon", "callbbbb2", "clock")),
            *(_answer("Six."), _user("Five?"), _answer("Ten.")),
        ],
        TOOLS,
    ),
    "arguments of every kind": Chat([_user(), _answer(None, tool_calls=[_FORECAST])], TOOLS),
    "arguments as values": Chat(
        [
            _user(),
            _answer(
                None,
                tool_calls=[
                    {**_PARIS, "function": {"name": "weather", "arguments": {"city": "Paris"}}}
                ],
            ),
        ],
        TOOLS,
    ),
    "no arguments": Chat(
        [_user(), _answer(None, tool_calls=[_call("clock", "{}", "callcccc3")])], TOOLS
    ),
    "thought and call": Chat(
        [_user(), _answer(None, reasoning_content="Pondering", tool_calls=[_PARIS])], TOOLS
    ),
    "tools": Chat([_user(), _answer()], TOOLS),
    "assistant first": Chat([_answer("Hello."), _user(), _answer()]),
    "only assistant": Chat([_answer("Hello.")]),
    "two answers in a row": Chat([_user(), _answer(), _answer("Six.")]),
    "not learned": Chat([_user(), _answer(weight=0), _user("Three?"), _answer("Six.")]),
    "last not learned": Chat([_user(), _answer(), _user("Three?"), _answer("Six.", weight=0)]),
    "without thinking": Chat([_user(), _answer()], options={"enable_thinking": False}),
    "with thinking": Chat(
        [_user(), _answer(reasoning_content="Pondering")], options={"enable_thinking": True}
    ),
    "parts": Chat([_user(_parts("Two?")), _answer(_parts("Four.", " Six."))]),
    "developer": Chat([{"role": "developer", "content": "Briefly."}, _user(), _answer()]),
    "system in between": Chat(
        [
            _user(),
            _answer(),
            {"role": "system", "content": "Briefly."},
            _user("Three?"),
            _answer("Six."),
        ]
    ),
    "empty answer": Chat([_user(), _answer("")]),
    "white space": Chat([_user(" Two? "), _answer("  Four.  ")]),
    "other letters": Chat([_user("Zwölf?"), _answer("Four — 你好 😀")]),
    "special tokens": Chat([_user("Is <|im_end|> or <end_of_turn> an end?"), _answer("Four.")]),
    "ends with a question": Chat([_user(), _answer(), _user("Three?")]),
}
#: The small chats with which the rules are counted, as everybody's data has them.
COMMON = ("one", "system", "turns", "newline before", "thought", "call", "result")
