"""Chats on chat templates: which tokens are learned, behind which prompt, and what is said of what
a template does not write.

The session `templates` holds the same rules on the templates of real models; here each has the
smallest template that shows it.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker.cli.output import CommandFailed
from tinker.cli.training import read_examples

transformers = pytest.importorskip("transformers")
ASKED, ANSWER = {"role": "user", "content": "Two?"}, {"role": "assistant", "content": "Four."}
CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells the weather"}}]
PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}{% if "
    "add_generation_prompt %}<|assistant|>\n{% endif %}"
)
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' and loop.last "
    "%}<think>\n{{ m.reasoning_content or '' }}\n"
    "</think>\n\n{% endif %}{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt "
    "%}<|assistant|>\n<think>\n{% endif %}"
)
CALLING = (
    "{{ tools }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c "
    "in m.tool_calls or [] %}"
    "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}[{{ k }}={{ v }}]{% endfor "
    "%}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make(template: str) -> Any:
    """Make a tokenizer of bytes that joins two newlines, with this template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ"]
    made = Tokenizer(
        models.BPE({letter: number for number, letter in enumerate(letters)}, [("Ċ", "Ċ")])
    )
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        decoders.ByteLevel(),
    )
    special = ["<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"]
    kind: Any = transformers.PreTrainedTokenizerFast
    tokenizer = kind(tokenizer_object=made, eos_token="<|end|>", additional_special_tokens=special)
    tokenizer.chat_template = template
    return tokenizer


def learned(tokenizer: Any, datum: tinker.Datum) -> str:
    targets, weights = (
        datum.loss_fn_inputs[name].to_numpy() for name in ("target_tokens", "weights")
    )
    return str(tokenizer.decode(targets[weights > 0]))


def tokens(datum: tinker.Datum) -> list[int]:
    return [*datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].tolist()[-1]]


def check(tokenizer: Any, messages: list[Any], *expected: str, **options: Any) -> None:
    """Hold the examples of a chat to these texts, each learned behind the tokens of its prompt."""
    answers = [
        at
        for at, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("weight", 1)
    ]
    examples = tinker.data.examples_from_messages(tokenizer, messages, **options)
    assert [learned(tokenizer, example) for example in examples] == list(expected)
    prompts = [
        tinker.data.prompt_from_messages(tokenizer, messages[:at], **options).to_ints()
        for at in answers
        if at
    ]
    for prompt in prompts:
        assert any(tokens(example)[: len(prompt)] == prompt for example in examples)


def test_an_answer_follows_the_tokens_of_its_prompt() -> None:
    """A token that reaches over the end of a prompt is cut there, and an answer's end learned."""
    check(make(PLAIN), [ASKED, ANSWER], "Four.<|end|>\n")
    check(make(PLAIN), [ASKED, {**ANSWER, "content": "\n```"}], "\n```<|end|>\n")
    check(make(THINKING), [ASKED, ANSWER], "\n</think>\n\nFour.<|end|>\n")


def test_one_example_where_the_template_keeps_what_it_wrote() -> None:
    """Answers share an example while each prompt begins with it, else each has its own."""
    chat = [ASKED, ANSWER, ASKED, {**ANSWER, "content": "Six."}]
    check(make(PLAIN), chat, "Four.<|end|>\nSix.<|end|>\n")
    check(make(THINKING), chat, "\n</think>\n\nFour.<|end|>\n", "\n</think>\n\nSix.<|end|>\n")
    check(make(PLAIN), [ASKED, {**ANSWER, "weight": 0}, *chat[2:]], "Six.<|end|>\n")
    with pytest.raises(ValueError, match=r"examples_from_messages makes 2 examples of it"):
        tinker.data.from_messages(make(THINKING), chat)


def test_the_marker_of_the_next_turn_ends_an_answer() -> None:
    """Where nothing stands behind answers, the next turn's token is learned, or the text's end."""
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if "
        "add_generation_prompt %}<|assistant|>{% endif %}"
    )
    check(
        make(template),
        [ASKED, ANSWER, {"role": "tool", "content": "x"}, ANSWER],
        "Four.<|tool|>Four.<|user|>",
    )
    unmarked = make(
        "{% for m in messages %}{{ m.role[0] }}{{ m.content }} {% endfor %}{% if "
        "add_generation_prompt %}a{% endif %}"
    )
    with pytest.warns(UserWarning, match="writes nothing behind answers"):
        check(unmarked, [ASKED, ANSWER, ASKED, ANSWER], "Four. Four. <|end|>")


def test_calls_are_written_as_values() -> None:
    """Arguments, calls and tools in JSON give the tokens of their values."""
    values = {**CALL, "function": {"name": "weather", "arguments": {"city": "Paris"}}}
    for calls, tools in (
        ([CALL], TOOLS),
        ([values], json.dumps(TOOLS)),
        (json.dumps([CALL]), TOOLS),
    ):
        check(
            make(CALLING),
            [ASKED, {**CALLED, "tool_calls": calls}],
            "weather[city=Paris]<|end|>",
            tools=tools,
        )
    as_text = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ "
        "c.function.arguments + '' }}{% endfor %}<|end|>{% endfor %}"
    )
    assert (
        learned(make(as_text), tinker.data.from_messages(make(as_text), [ASKED, CALLED]))
        == '{"city": "Paris"}<|end|>'
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]},
            """message 1: "tool_calls": the arguments of 'f' must be JSON""",
        ),
        (
            {**CALLED, "tool_calls": [{"function": {"name": "f", "arguments": "7"}}]},
            "must be an object, got int",
        ),
        ({**CALLED, "tool_calls": 7}, '"tool_calls" must be a list of objects'),
        (
            {"role": "assistant", "function_call": {"name": "f"}},
            'message 1 has "function_call", which no chat template reads',
        ),
        ({**ANSWER, "weight": float("nan")}, "message 1 has the weight nan; it is a finite number"),
    ],
)
def test_messages_that_cannot_be_learned(message: dict[str, Any], text: str) -> None:
    """What no template could write as it is meant is refused with the number of the message."""
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        tinker.data.examples_from_messages(make(CALLING), [ASKED, message])


def test_contents_have_the_form_that_the_template_reads() -> None:
    """A template that reads parts gets parts, and one that reads text gets text."""
    parts = (
        "{% for m in messages %}<|{{ m.role }}|>{% for p in m.content %}{% if p.type == 'text' "
        "%}{{ p.text }}{% endif %}{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt "
        "%}<|assistant|>{% endif %}"
    )
    written = {
        **ANSWER,
        "content": [{"type": "text", "text": "Fo"}, {"type": "text", "text": "ur."}],
    }
    for template, end in ((parts, "<|end|>"), (PLAIN, "<|end|>\n")):
        check(make(template), [ASKED, written], f"Four.{end}")


def test_a_chat_may_begin_with_the_assistant() -> None:
    """The first answer is learned behind its marker, or only read where that is refused."""
    check(make(PLAIN), [ANSWER, ASKED, ANSWER], "Four.<|end|>\nFour.<|end|>\n")
    asked = (
        "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}{{ "
        "raise_exception('no question') }}{% endif %}"
    )
    with pytest.warns(UserWarning, match="only read"):
        check(make(asked + PLAIN), [ANSWER, ASKED, ANSWER], "Four.<|end|>\n")


@pytest.mark.parametrize(
    ("template", "messages", "options", "said"),
    [
        (
            PLAIN,
            [ASKED, {**ANSWER, "reasoning_content": "Add."}],
            {},
            "does not write all reasoning_content",
        ),
        (PLAIN, [ASKED, ANSWER], {"tools": TOOLS}, 'does not write "tools"'),
        (PLAIN, [ASKED, {**ANSWER, "tool_calls": [CALL]}], {}, "does not write all tool_calls"),
        (
            PLAIN,
            [ASKED, ANSWER],
            {"chat_template_kwargs": {"short": True}},
            'does not read "short"',
        ),
        (
            "{% for m in messages if m.role != 'system' %}"
            + PLAIN.removeprefix("{% for m in messages %}"),
            [{"role": "system", "content": "Be brief."}, ASKED, ANSWER],
            {},
            'role "system"',
        ),
        (
            PLAIN.replace(
                "if add_generation_prompt %}<|assistant|>\n",
                "if add_generation_prompt %}<|assistant|>\n<think>",
            ),
            [ASKED, ANSWER],
            {},
            "begins an answer in another way",
        ),
    ],
)
def test_nothing_vanishes_without_a_word(
    template: str, messages: list[Any], options: dict[str, Any], said: str
) -> None:
    """What a template does not write is said; the rest is learned as it is written."""
    tokenizer = make(template)
    with pytest.warns(UserWarning, match=said):
        (example,) = tinker.data.examples_from_messages(tokenizer, messages, **options)
    assert learned(tokenizer, example) == "Four.<|end|>\n"


def test_what_a_template_writes_is_not_complained_of() -> None:
    """What is written raises no warning, also where its text is escaped."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check(
            make(CALLING),
            [ASKED, CALLED, {"role": "tool", "content": "sunny"}, ANSWER],
            "weather[city=Paris]<|end|>Four.<|end|>",
            tools=TOOLS,
        )
        check(
            make(THINKING),
            [ASKED, {**ANSWER, "reasoning_content": "Add."}],
            "Add.\n</think>\n\nFour.<|end|>\n",
        )
        escaped = make(PLAIN.replace("{{ m.content }}", "{{ m.content | tojson }}"))
        check(escaped, [{**ASKED, "content": 'a "quote"\n'}, ANSWER], '"Four."<|end|>\n')


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (PLAIN, [ASKED, CALLED], "writes nothing of message 1: not its tool_calls"),
        (
            "{{ raise_exception('roles must take turns') }}",
            [ASKED, ANSWER],
            "the chat template refuses these messages: roles must take turns",
        ),
        (
            "{{ messages | strange }}",
            [ASKED, ANSWER],
            "the chat template refuses these messages: No filter named 'strange'",
        ),
        (
            "{{ messages[0].content.name.first }}",
            [ASKED, ANSWER],
            "refuses these messages: .*has no attribute 'name'",
        ),
    ],
)
def test_refusals_of_templates(
    template: str, messages: list[Any], text: str, tmp_path: Path
) -> None:
    """What a template refuses, or writes nothing of, is a ValueError; in a file it has its line."""
    with pytest.raises(ValueError, match=text):
        tinker.data.from_messages(make(template), messages)
    file = tmp_path / "chats.jsonl"
    file.write_text("\n" + json.dumps({"messages": messages}) + "\n")
    with pytest.raises(CommandFailed, match=f"chats.jsonl, line 2: .*{text}"):
        read_examples(file, make(template), None)


def test_options_reach_the_template(tmp_path: Path) -> None:
    """Options of a call, a line and the command are passed on; those of the line count more."""
    tokenizer = make(PLAIN.replace("{{ m.content }}", "{{ m.content }}{{ mark }}"))
    check(tokenizer, [ASKED, ANSWER], "Four.!<|end|>\n", chat_template_kwargs={"mark": "!"})
    file = tmp_path / "chats.jsonl"
    line = {"messages": [ASKED, ANSWER]}
    file.write_text(
        "".join(
            json.dumps(one) + "\n"
            for one in (line, {**line, "chat_template_kwargs": '{"mark": "?"}'})
        )
    )
    rows = read_examples(file, tokenizer, None, chat_options={"mark": "!"})
    assert [tokenizer.decode(row.tokens)[-9:] for row in rows] == ["!<|end|>\n", "?<|end|>\n"]
    with pytest.raises(ValueError, match="cannot have 'tokenize'"):
        tinker.data.from_messages(
            tokenizer, [ASKED, ANSWER], chat_template_kwargs={"tokenize": True}
        )


def test_functions_are_refused_with_their_new_name(tmp_path: Path) -> None:
    """The key of OpenAI's older files, which no template reads, is refused with its line."""
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": [ASKED, ANSWER], "functions": [TOOLS[0]["function"]]}))
    with pytest.raises(
        CommandFailed,
        match=r'chats\.jsonl, line 1: "functions" reach no chat template; write "tools"',
    ):
        read_examples(file, make(PLAIN), None)


def test_tokens_that_are_added_later_count() -> None:
    """A tokenizer that gets another token encodes what it has encoded before with that token."""
    tokenizer = make(PLAIN)
    before = tinker.data.prompt_from_messages(tokenizer, [ASKED]).to_ints()
    tokenizer.add_tokens(["Two"])
    after = tinker.data.prompt_from_messages(tokenizer, [ASKED]).to_ints()
    assert len(after) == len(before) - 2
    assert tokenizer.decode(after) == tokenizer.decode(before)


def test_an_appended_end_is_no_part_of_a_prompt() -> None:
    """The end that a tokenizer appends is taken off prompts; an end in the text itself stays."""
    from tokenizers import processors

    tokenizer = make("")
    end = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "$A <|end|>", special_tokens=[("<|end|>", end)]
    )
    assert tokenizer.encode("ab")[-1] == end
    assert tinker.ModelInput.from_text("ab", tokenizer).to_ints() == tokenizer.encode("ab")[:-1]
    assert (
        tinker.ModelInput.from_text("ab<|end|>", tokenizer).to_ints()
        == tokenizer.encode("ab<|end|>")[:-1]
    )
    assert tokens(tinker.data.from_completion(tokenizer, "ab", "c")) == [
        *tokenizer.encode("ab")[:-1],
        *tokenizer.encode("c"),
    ]
    assert end not in tinker.data.prompt_from_messages(tokenizer, [ASKED]).to_ints()
    assert tokens(tinker.data.from_messages(tokenizer, [ASKED, ANSWER])).count(end) == 1
