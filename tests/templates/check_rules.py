"""Examples of chats on the templates that TRL ships: `nox -s compat -- templates`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import tinker
from templates.chats import CHATS, Chat
from templates.judge import Example, Judge, encode_publicly, hear, read_example
from templates.tally import count_case
from templates.tokenizers_made import KINDS, make_tokenizer
from templates.wheel import FOR_TRAINING, TEMPLATES

QUESTION: dict[str, Any] = {"role": "user", "content": "Two?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "Four."}


def test_the_wheel_has_its_templates() -> None:
    """None of the templates of TRL 1.16.0 is passed over."""
    assert len(TEMPLATES) == 41
    assert FOR_TRAINING.keys() <= TEMPLATES.keys()
    assert len(FOR_TRAINING) == 31


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_learned_of_chats(name: str, kind: str) -> None:
    """Each chat is learned as the template writes it behind its prompt, or refused in its words."""
    tokenizer = make_tokenizer(kind, name, TEMPLATES[name])
    judge, broken = Judge(tokenizer, kind), list[str]()
    for chat_name, chat in CHATS.items():
        try:
            verdict = judge.judge(chat, lambda chat: encode_publicly(tokenizer, chat))
        except Exception as error:  # noqa: BLE001 - a kind of error that is no ValueError breaks a rule too
            count_case(kind, name, chat_name, "broken")
            broken.append(f"{chat_name}: {type(error).__name__}: {error}")
        else:
            count_case(kind, name, chat_name, verdict.kind, verdict.words)
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_what_is_sampled_from(name: str, kind: str) -> None:
    """The prompt of a question is what the template writes of it, with no token around it."""
    tokenizer = make_tokenizer(kind, name, TEMPLATES[name], ends_texts=True)
    for options in (None, {"enable_thinking": False}, {"enable_thinking": True}):
        texts = []
        for content in ("Two?", [{"type": "text", "text": "Two?"}]):
            try:
                question = [{"role": "user", "content": content}]
                text = tokenizer.apply_chat_template(
                    question, tokenize=False, add_generation_prompt=True, **(options or {})
                )
            except Exception:  # noqa: BLE001 - whatever jinja2 raises for a form that the template does not read
                continue
            texts += [text] * ("Two?" in text)
        given: dict[str, Any] = {"chat_template_kwargs": options} if options else {}
        with hear():
            prompt = tinker.data.prompt_from_messages(tokenizer, [QUESTION], **given)
        wanted = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        assert prompt.to_ints() in wanted, (options, texts)


def _examples(tokenizer: Any, messages: list[Any], **given: Any) -> list[Example]:
    found = tinker.data.examples_from_messages(tokenizer, messages, **given)
    return [read_example(datum) for datum in found]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_functions_for_one_example_agree(name: str) -> None:
    """One example is the same from each function; of several, the error names theirs."""
    tokenizer = make_tokenizer("byte-level", name, TEMPLATES[name])
    for chat_name, chat in CHATS.items():
        given: dict[str, Any] = {"tools": chat.tools, "chat_template_kwargs": chat.options}
        try:
            with hear():
                several, last = (
                    _examples(tokenizer, chat.messages, **given, **more)
                    for more in ({}, {"first": -1})
                )
        except ValueError:
            continue
        with hear():
            if len(several) == 1:
                one = tinker.data.from_messages(tokenizer, chat.messages, **given)
                assert read_example(one) == several[0], chat_name
            else:
                with pytest.raises(ValueError, match="examples_from_messages"):
                    tinker.data.from_messages(tokenizer, chat.messages, **given)
            if len(chat.messages) > 1 and not chat.tools and not chat.options:
                *before, answer = chat.messages
                completed = tinker.data.from_completion(tokenizer, before, [answer])
                assert read_example(completed) == last[0], chat_name


def test_first_and_max_length() -> None:
    """Answers before `first` are only read; longer examples are cut, empty ones left out."""
    tokenizer = make_tokenizer("byte-level", "qwen3", TEMPLATES["qwen3"])
    messages = CHATS["turns"].messages
    every = _examples(tokenizer, messages)
    assert len(every) == 3
    assert _examples(tokenizer, messages, first=3) == every[1:]
    cut = [tuple(part[:20] for part in every[0])]
    assert _examples(tokenizer, messages, max_length=20) == cut


_TOOL = {"name": "weather", "description": "Tells it", "parameters": {}}
_TOOLS = [{"type": "function", "function": _TOOL}]
_CALLED = {"name": "weather", "arguments": '{"city": "Paris"}'}
_CALLS = [{"id": "1", "type": "function", "function": _CALLED}]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_8", "gptoss", "lfm2_2_5"])
def test_tools_and_calls_in_a_string(name: str) -> None:
    """Tools and calls as JSON in a string are learned as those in lists."""
    tokenizer = make_tokenizer("byte-level", name, TEMPLATES[name])
    wanted, got = (
        _examples(
            tokenizer,
            [QUESTION, {"role": "assistant", "content": None, "tool_calls": calls}],
            tools=tools,
        )
        for calls, tools in ((_CALLS, _TOOLS), (json.dumps(_CALLS), json.dumps(_TOOLS)))
    )
    assert got == wanted


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"tool_calls": [{**_CALLS[0], "function": {**_CALLED, "arguments": "{city"}}]},
            "message 1",
        ),
        ({"tool_calls": "[{"}, "message 1"),
        ({"function_call": _CALLED}, "tool_calls"),
    ],
)
def test_calls_that_cannot_be_read(fields: dict[str, Any], words: str) -> None:
    """A call that is no JSON is refused with the message's number, an older one by its name."""
    tokenizer = make_tokenizer("byte-level", "qwen3", TEMPLATES["qwen3"])
    with pytest.raises(ValueError, match=words):
        _examples(tokenizer, [QUESTION, {"role": "assistant", "content": None, **fields}])


@pytest.mark.parametrize("kind", KINDS)
def test_ends_that_a_tokenizer_appends(kind: str) -> None:
    """The end token that a tokenizer appends is in no prompt: of texts, of plain chats."""
    tokenizer = make_tokenizer(kind, "qwen3", TEMPLATES["qwen3"], ends_texts=True)
    end = tokenizer.eos_token_id
    tokenizer.chat_template = None
    prompt = tinker.data.prompt_from_messages(tokenizer, [QUESTION]).to_ints()
    assert end not in prompt
    chat = read_example(tinker.data.from_messages(tokenizer, [QUESTION, ANSWER]))
    text = read_example(tinker.data.from_completion(tokenizer, "Two?", " Four."))
    for tokens, learned in (chat, text, *_examples(tokenizer, [QUESTION, ANSWER] * 2)):
        assert (tokens.count(end), tokens[-1], learned[-1]) == (1, end, True)
    assert chat.tokens[: len(prompt)] == prompt
    assert tinker.ModelInput.from_text("Two?", tokenizer).to_ints()[-1] != end


def test_the_judge_finds_faults() -> None:
    """The judge accepts what it should, and finds examples with a fault of each kind."""
    tokenizer = make_tokenizer("byte-level", "qwen2_5", TEMPLATES["qwen2_5"])
    judge, chat = Judge(tokenizer, "byte-level"), Chat([QUESTION, ANSWER])
    text = tokenizer.apply_chat_template([QUESTION], tokenize=False, add_generation_prompt=True)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    answer = tokenizer.encode("Four.<|im_end|>\n", add_special_tokens=False)

    def examples(tokens: list[int], learned: int) -> list[tinker.Datum]:
        return [tinker.data.from_tokens(tokens, [0.0] * (len(tokens) - learned) + [1.0] * learned)]

    judge.judge(chat, lambda chat: examples(prompt + answer, len(answer)))
    faults = {
        "too little is learned": examples(prompt + answer, len(answer) - 1),
        "the prompt is learned": examples(prompt + answer, len(answer) + 1),
        "no end": examples(prompt + answer[:-2], len(answer) - 2),
        "no beginning of the prompt": examples(prompt[1:] + answer, len(answer)),
        "a space": examples(prompt + tokenizer.encode(" ") + answer, len(answer) + 1),
        "twice": examples(prompt + answer, len(answer)) * 2,
        "nothing": [],
    }
    for fault, given in faults.items():
        with pytest.raises(AssertionError):
            pytest.fail(f"{fault}: {judge.judge(chat, lambda chat: given)}")  # noqa: B023 - called at once


@pytest.mark.parametrize(
    ("name", "chat"),
    [
        ("qwen3", "turns"),  # one example for each answer
        ("idefics3", "one"),  # contents in parts
        ("glm4moe", "one"),  # ended by the next turn
        ("qwen3", "thought"),
        ("qwen3", "call"),
        ("nemotron_3_nano", "one"),  # the prompt opens a thought
        ("qwen2_5", "not learned"),
    ],
)
def test_the_judge_refuses_a_plain_encoder(name: str, chat: str) -> None:
    """An encoder that learns all of a chat breaks a rule wherever a rule says something."""
    tokenizer = make_tokenizer("byte-level", name, TEMPLATES[name])

    def encode(chat: Chat) -> list[tinker.Datum]:
        text = tokenizer.apply_chat_template(chat.messages, tools=chat.tools, tokenize=False)
        return [tinker.data.from_tokens(tokenizer.encode(text, add_special_tokens=False))]

    with pytest.raises(AssertionError):
        pytest.fail(str(Judge(tokenizer, "byte-level").judge(CHATS[chat], encode)))
