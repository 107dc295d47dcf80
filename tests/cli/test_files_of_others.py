"""Files of other programs: they are read, or one line says what is wrong and where."""

from __future__ import annotations

import codecs
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import UNREACHABLE, Ask, Call, write

from tinker._basics import config as _config
from tinker.cli import training
from tinker.cli.reading import normalize_line

REWARD = "def reward(answer, example):\n    return len(answer)\n"
SAMPLE = "sample --file x.jsonl --out answers.jsonl --max-tokens 2"

#: What a file begins with or has in its second line, and what is said of it.
SPOILED: dict[str, tuple[bytes, str]] = {
    "half a pair": (
        rb'{"text": "ab\ud83d", "prompt": "a"}',
        r"line 2: half of a character, \ud83d, behind ",
    ),
    "half a pair in a list": (
        rb'{"prompt": [{"a\udfff": 1}]}',
        r"line 2: half of a character, \udfff, behind ",
    ),
    "Latin-1": ("{'prompt': 'café'}".encode("latin-1"), "line 2: not text in UTF-8: byte 0xe9"),
    "cut within a character": (
        '{"prompt": "é'.encode()[:-1],
        "line 2: not text in UTF-8: byte 0xc3",
    ),
    "NUL": (b'{"prompt": "a"}\0', "line 2: not JSON: Extra data (column 16)"),
    "NUL in a text": (
        b'{"prompt": "\0"}',
        "line 2: not JSON: Invalid control character at (column 13)",
    ),
    "only NUL": (bytes(4), "line 2: not JSON: Expecting value (column 1)"),
    "many digits": (
        b'{"prompt": ' + b"1" * 5000 + b"}",
        "line 2: not JSON: a number of more than 4,300 digits",
    ),
    "many brackets": (
        b'{"prompt": ' + b"[" * 100_000,
        "line 2: not JSON: too many brackets in each other",
    ),
    "many objects": (b'{"prompt": ' * 100_000, "line 2: not JSON: too many brackets in each other"),
    "two objects in a line": (
        b'{"prompt": "a"}\r{"prompt": "b"}',
        "line 2: not JSON: Extra data (column 17)",
    ),
}
WHOLE: dict[str, tuple[bytes, str]] = {
    "gzip": (gzip.compress(b"text"), " is compressed (gzip): unpack it"),
    "zstd": (b"(\xb5/\xfd\x04\0", " is compressed (zstd): unpack it"),
    "ZIP": (b"PK\3\4\x14\0", " is compressed (ZIP): unpack it"),
    "UTF-16 with a mark": (
        '{"text": "a"}\n'.encode("utf-16"),
        " is text in UTF-16: save it as UTF-8",
    ),
    "UTF-16, big": (
        codecs.BOM_UTF16_BE + '{"text": "a"}\n'.encode("utf-16-be"),
        " is text in UTF-16: save it as UTF-8",
    ),
    "UTF-16 without a mark": (
        '{"text": "a"}\n'.encode("utf-16-le"),
        " is text in UTF-16: save it as UTF-8",
    ),
}
NOT_TEXT = {
    "Latin-1": SPOILED["Latin-1"],
    "cut within a character": SPOILED["cut within a character"],
    **WHOLE,
}


@pytest.fixture
def reward(tmp_path: Path) -> str:
    """Return the name of a file with a reward function."""
    (tmp_path / "reward.py").write_text(REWARD)
    return "reward.py"


# Lines


@pytest.mark.parametrize(
    "command",
    [
        "train x.jsonl",
        "train good.jsonl --eval-file x.jsonl",
        "train x.jsonl --grpo reward.py",
        SAMPLE,
        "run watch x.jsonl --once",
        "run compare x.jsonl",
        "sample --file good.jsonl --out x.jsonl",
    ],
)
@pytest.mark.parametrize("name", SPOILED)
def test_a_line_that_is_wrong(
    refuse: Any, server: str, tmp_path: Path, reward: str, name: str, command: str
) -> None:
    """Every command that reads lines names file and line, and asks no server for anything."""
    line, words = SPOILED[name]
    good = b'{"index": 0, "step": 1, "loss": 1, "text": "a", "prompt": "a", "completion": "b"}\n'
    (tmp_path / "x.jsonl").write_bytes(good + line + b"\n" + good)
    (tmp_path / "good.jsonl").write_bytes(good)
    # whose tokenizer GRPO needs
    refuse(1, f"x.jsonl, {words}", command, base_url=server if "--grpo" in command else UNREACHABLE)
    assert (tmp_path / "x.jsonl").read_bytes() == good + line + b"\n" + good


@pytest.mark.parametrize("name", NOT_TEXT)
def test_a_file_that_is_no_text(
    refuse: Any, server: str, tmp_path: Path, reward: str, name: str
) -> None:
    """A text that is compressed or not UTF-8 is named as such, with the line, wherever it is read."""
    content, words = NOT_TEXT[name]
    content = content + b"\n" if name in WHOLE else b"one\n" + content
    words = words if name in WHOLE else f", {words}"
    for file in ("x.jsonl", "x.json", "x.txt", "x.toml"):
        (tmp_path / file).write_bytes(content)
    write(tmp_path / "good.jsonl", {"prompt": "a", "text": "a"})
    commands = {
        "sample --prompt-file x.txt": "x.txt",
        "sample --prompt-file x.json": "x.json",
        "train good.jsonl --config x.toml": "x.toml",
    }
    if name in WHOLE:
        commands |= dict.fromkeys(
            [
                "train x.jsonl",
                "train good.jsonl --eval-file x.jsonl",
                SAMPLE,
                "sample --file good.jsonl --out x.jsonl",
                "run watch x.jsonl --once",
                "run compare x.jsonl",
            ],
            "x.jsonl",
        )
        grpo = "train x.jsonl --grpo reward.py"
        refuse(1, f"x.jsonl{words}", grpo, base_url=server)
        refuse(1, f"standard input{words}", "train -", input=content)
    for command, file in commands.items():
        refuse(1, file + words, command)
        assert (tmp_path / file).read_bytes() == content
    refuse(1, f"standard input{words}", "sample", input=content)


@pytest.mark.parametrize(
    "text",
    [
        "a\u2028b",
        "a\u2029b",
        "a\x85b",
        "a\x0bb",
        "a\x0cb",
        "a\x1cb",
        "a\0b",
        "\ufeffa",
        "a\rb",
        "😀",
    ],
)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_lines_end_with_a_newline_and_nothing_else(
    ask: Ask, call: Call, tmp_path: Path, text: str, ascii_only: bool
) -> None:
    """Texts with separators of lines are read, answered, and found again in a second run."""
    pytest.importorskip("transformers")
    line = {"prompt": text, "completion": text, "note": text, "step": 1, "loss": 2.0}
    lines = f"{json.dumps(line, ensure_ascii=ascii_only)}\r\n" * 2
    (tmp_path / "x.jsonl").write_bytes(lines.encode())
    assert len(ask("train x.jsonl --batch-size 1")["losses"]) == 2
    assert ask(SAMPLE)["new"] == 2
    out = tmp_path / "answers.jsonl"
    whole = out.read_bytes()
    assert json.loads(whole.split(b"\n")[0])["note"] == text
    assert ask(SAMPLE)["new"] == 0
    assert out.read_bytes() == whole
    result = call("run watch x.jsonl --once")
    assert (result.exit_code, result.stdout) == (0, "step 1 loss 2.0000\n" * 2), result.stderr


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 9, 30, 60])
def test_an_answer_that_was_cut_is_sampled_again(ask: Ask, tmp_path: Path, cut: int) -> None:
    """However many bytes of the last answer are missing, the file is completed as it was."""
    pytest.importorskip("transformers")
    (tmp_path / "x.jsonl").write_text(
        '{"prompt": "1", "note": "b\u2028é😀"}\n{"prompt": "2", "note": "b\u2028é😀"}\n', "utf-8"
    )
    arguments = f"{SAMPLE} --temperature 0"
    ask(arguments)
    out = tmp_path / "answers.jsonl"
    whole = out.read_bytes()
    out.write_bytes(whole[:-cut])
    assert ask(arguments)["new"] == 1
    assert out.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [b"my notes", b"my notes\n", b'{"a": 1}\n{"b"', b"\xff", b'{"index": 0, "prompt": "1"}\nnotes'],
)
def test_a_file_that_is_not_of_answers_keeps_its_bytes(
    refuse: Any, tmp_path: Path, content: bytes
) -> None:
    """A file of something else, given as --out by mistake, is refused and stays as it is."""
    (tmp_path / "x.jsonl").write_text('{"prompt": "1"}\n')
    (tmp_path / "notes.txt").write_bytes(content)
    told = refuse(1, "notes.txt, line ", "sample --file x.jsonl --out notes.txt")
    assert "notes.txt does not contain answers of this command" in told
    assert (tmp_path / "notes.txt").read_bytes() == content


def test_byte_order_marks(ask: Ask, call: Call, tmp_path: Path) -> None:
    """The mark is no part of a text, whether of options, a log, prompts or joined files."""
    pytest.importorskip("transformers")
    line = b'{"prompt": "abc", "completion": "d", "step": 1, "loss": 2.0}\n'
    (tmp_path / "x.jsonl").write_bytes((codecs.BOM_UTF8 + line) * 2)
    (tmp_path / "options.toml").write_bytes(codecs.BOM_UTF8 + b"batch-size = 1\r\n")
    (tmp_path / "prompt.txt").write_bytes(codecs.BOM_UTF8 + b"abc\r\n")
    (tmp_path / "prompt.json").write_bytes(codecs.BOM_UTF8 + b'["abc"]')
    trained = ask("train x.jsonl --config options.toml --eval-file x.jsonl")
    assert len(trained["losses"]) == 2
    assert ask(SAMPLE)["new"] == 2
    assert call("run watch x.jsonl --once").stdout == "step 1 loss 2.0000\n" * 2
    sample = "sample --max-tokens 2 --temperature 0"
    expected = ask(f"{sample} abc")["samples"]
    assert ask(f"{sample} --prompt-file prompt.txt")["samples"] == expected
    assert ask(f"{sample} --prompt-file prompt.json")["samples"] == expected
    assert ask(sample, input=codecs.BOM_UTF8 + b"abc\r\n")["samples"] == expected


# Whole texts


def test_turns_in_a_pipe(call: Call, refuse: Any, server: str) -> None:
    """A chat in a pipe is UTF-8, with or without a mark; another line is refused with its number."""
    pytest.importorskip("transformers")
    chat = "chat --max-tokens 4 --temperature 0"
    turns = ["é", "b\u2028c"]
    said = call(chat, input="\n".join(turns).encode()).stdout
    assert call(chat, input=codecs.BOM_UTF8 + "\r\n".join(turns).encode()).stdout == said
    wrong = "standard input, line 2: not text in UTF-8: byte 0xe9"
    refuse(1, wrong, chat, input=b"hi\ncaf\xe9\n", base_url=server)


def test_keys_that_are_no_text(
    refuse: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key in a pipe or in a file that is not UTF-8 is refused, with the name of the file."""
    monkeypatch.setattr(_config, "HOSTED_URL", UNREACHABLE)
    said = ", line 1: not text in UTF-8"
    refuse(1, f"standard input{said}", "auth login", input=b"tml-\xe9\n")
    (tmp_path / "key").write_bytes(b"tml-\xe9\n")
    refuse(1, f"key{said}", "serve --engine toy --port 0 --api-key-file key")


NOT_TOKENS = '"prompt" must be text or a list of integers from 0; at position'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r'["ab\ud83d"]', r"prompt.json: half of a character, \ud83d, behind "),
        (f"[{'1' * 5000}]", "prompt.json: not JSON: a number of more than 4,300 digits"),
        ("[" * 100_000, "prompt.json: not JSON: too many brackets in each other"),
        ('["a",\n"b"', "prompt.json, line 2: not JSON: Expecting ',' delimiter (column 4)"),
        ("[", "prompt.json, line 1: not JSON: Expecting value (column 2)"),
        (f"[{'1' * 400}]", "prompt.json: prompt 0"),
        ("[1, [2]]", f"prompt 0: {NOT_TOKENS} 1 it has [2]"),
        ("[1, 2.5, 3]", f"prompt 0: {NOT_TOKENS} 1 it has 2.5"),
        ("[[1], [1, -2]]", f"prompt 1: {NOT_TOKENS} 1 it has -2"),
        ('["a", 5.5]', f'prompt 0: {NOT_TOKENS} 0 it has "a"'),
        ('["a", true]', 'prompt 1: "prompt" must be text or a list of integers from 0, got bool'),
        ('["a", null]', "a prompt is empty"),
        ("[]", "a prompt is empty"),
        ('""', "a prompt is empty"),
        (
            '{"prompt": "a"}',
            "prompt.json is not a prompt, or a list of such\n"
            "A file with an object on each line is read by --file.",
        ),
    ],
    ids=lambda value: value[:20],
)
def test_prompts_in_json_that_are_wrong(refuse: Any, tmp_path: Path, text: str, words: str) -> None:
    """A JSON file of prompts is read as strictly as lines are, before any request."""
    (tmp_path / "prompt.json").write_text(text)
    refuse(1, words, "sample --prompt-file prompt.json")


@pytest.mark.parametrize("text", ["lr = " + "1" * 400, 'model = "a\\u0000"'])
def test_options_in_a_file_that_are_wrong(call: Call, tmp_path: Path, text: str) -> None:
    """A value that no option takes is refused in one line."""
    (tmp_path / "options.toml").write_text(text)
    write(tmp_path / "x.jsonl", {"text": "abc"})
    result = call("train x.jsonl --config options.toml")
    assert result.exit_code in (1, 2)
    assert (result.stderr.count("Error:"), "This is a bug" in result.stderr) == (1, False)


@pytest.mark.parametrize(
    "command",
    [
        "sample caf\udce9",
        "sample a --stop \udce9",
        "sample a --model caf\udce9",
        "chat --system caf\udce9",
        "train x.jsonl --name caf\udce9",
        "run info caf\udce9",
        "checkpoint list --run-id caf\udce9",
    ],
)
def test_arguments_that_are_no_text(refuse: Any, tmp_path: Path, command: str) -> None:
    """An argument in Latin-1, which Python gets as half of a surrogate pair, is refused at once."""
    write(tmp_path / "x.jsonl", {"text": "abc"})
    refuse(2, "not text in UTF-8: byte 0xe9", command, input="")


def test_files_whose_names_are_no_text(ask: Ask, call: Call, tmp_path: Path) -> None:
    """The name of a file may be any bytes: its text is what counts."""
    name = os.fsdecode(b"caf\xe9.jsonl")
    try:
        (tmp_path / name).write_text('{"text": "abc", "step": 1, "loss": 2.0}\n')
    except OSError:
        pytest.skip("this file system has names of text only")
    assert len(ask("train", name)["losses"]) == 1
    assert call("run watch", name, "--once").stdout == "step 1 loss 2.0000\n"


@pytest.mark.parametrize("key", ["step", "loss", "steps"])
@pytest.mark.parametrize("number", ["1" * 400, "1e999", "-" + "9" * 4000, "NaN"])
def test_numbers_of_a_log_that_have_no_room(
    call: Call, tmp_path: Path, key: str, number: str
) -> None:
    """A log with a number that is larger than a float is shown, or refused in one line."""
    line = {"step": "1", "loss": "1", key: number}
    text = ", ".join(f'"{name}": {value}' for name, value in line.items())
    (tmp_path / "log.jsonl").write_text(f"{{{text}}}\n" * 2)
    for command in ("run watch log.jsonl --once", "run compare log.jsonl"):
        result = call(command, base_url=UNREACHABLE)
        assert "bug" not in result.stderr, result.stderr
        assert result.exit_code in (0, 1)


# Weights


@pytest.mark.parametrize(
    "weight", ["NaN", "Infinity", "-Infinity", "1e999", "1e39", "1" * 400, '"1"', "[1]"]
)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            '{"tokens": [5, 6, 7], "weights": [0, %s, 1]}',
            'line 2: "weights" must be finite numbers; at position 1 it has ',
        ),
        (
            '{"tokens": [5, 6, 7], "weights": [0, 1, %s]}',
            'line 2: "weights" must be finite numbers; at position 2 it has ',
        ),
        *(
            (
                '{"messages": [{"role": "user", "content": "a"}, '
                f'{{"role": "assistant", "content": "b", "{name}": %s}}]}}',
                f"line 2: message 1 has the {name} ",
            )
            for name in ("weight", "train", "trainable")
        ),
    ],
)
def test_weights_that_are_no_finite_numbers(
    refuse: Any, server: str, ask: Ask, tmp_path: Path, line: str, words: str, weight: str
) -> None:
    """A weight that no float32 has is refused with the file and the line, and no run is created."""
    before = ask("run list --limit 0")["runs"]
    good = '{"tokens": [5, 6, 7], "weights": [0, true, 0.5]}\n'
    (tmp_path / "x.jsonl").write_text(f"{good}{line % weight}\n{good}")
    (tmp_path / "good.jsonl").write_text(good)
    for files in ("x.jsonl", "good.jsonl --eval-file x.jsonl"):
        refuse(1, f"x.jsonl, {words}", f"train {files}", base_url=server)
    assert ask("run list --limit 0")["runs"] == before


# Formats of other data sets


class Spoken:
    """A tokenizer whose template writes each role and content, with ids that are code points."""

    eos_token_id = 0
    chat_template = "any"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(
        self, messages: Any, *, tokenize: bool, add_generation_prompt: bool, tools: Any = None
    ) -> str:
        shown = "".join(
            f"<{one['role']}>{one['content']}{sorted(one.keys() - {'role', 'content'}) or ''}"
            for one in messages
        )
        return f"{tools or ''}{shown}" + ("<assistant>" if add_generation_prompt else "")


def chat(*turns: tuple[str, str]) -> list[dict[str, str]]:
    """Return messages."""
    return [{"role": role, "content": content} for role, content in turns]


ANSWERED = chat(("user", "a"), ("assistant", "b"))
SYSTEM = chat(("system", "s"))
HUMAN, GPT = {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}
ALPACA = {"instruction": "a", "output": "b"}
CALLING = [HUMAN, {"from": "gpt", "value": "call"}]
RESULTS = ("tool", "observation", "function_response")
READ: dict[str, tuple[dict[str, Any], list[dict[str, str]]]] = {
    "ShareGPT": ({"conversations": [HUMAN, GPT]}, ANSWERED),
    "ShareGPT with roles of messages": (
        {"conversations": [{**HUMAN, "from": "user"}, {**GPT, "from": "assistant"}]},
        ANSWERED,
    ),
    "ShareGPT, system": (
        {"conversations": [{"from": "system", "value": "s"}, HUMAN, GPT]},
        SYSTEM + ANSWERED,
    ),
    "ShareGPT, system beside it": (
        {"system": "s", "conversations": [HUMAN, GPT]},
        SYSTEM + ANSWERED,
    ),
    "ShareGPT, empty system": ({"system": "", "conversations": [HUMAN, GPT]}, ANSWERED),
    "ShareGPT, tool": (
        {
            "conversations": [*CALLING, *({"from": name, "value": "1"} for name in RESULTS), GPT],
            "tools": ["t"],
        },
        chat(("user", "a"), ("assistant", "call"), *[("tool", "1")] * 3, ("assistant", "b")),
    ),
    "messages of another name": ({"conversations": ANSWERED}, ANSWERED),
    "Alpaca": ({**ALPACA, "input": ""}, ANSWERED),
    "Alpaca without input": (ALPACA, ANSWERED),
    "Alpaca with input": ({**ALPACA, "input": "c"}, chat(("user", "a\nc"), ("assistant", "b"))),
    "Alpaca, system": ({**ALPACA, "input": "", "system": "s"}, SYSTEM + ANSWERED),
    "Alpaca, empty system": ({**ALPACA, "input": "", "system": ""}, ANSWERED),
}
NULLS = dict.fromkeys(
    [
        "messages",
        "prompt",
        "completion",
        "answer",
        "text",
        "tokens",
        "weights",
        "labels",
        "rejected",
        "label",
        "system",
        "tools",
    ]
)


def encode(file: Path) -> training.ExampleRow:
    """Return the only example of a file."""
    (row,) = training.read_examples(file, Spoken(), None)
    return row


@pytest.mark.parametrize("has_nulls", [False, True])
@pytest.mark.parametrize("name", READ)
def test_formats_that_are_read(
    ask: Ask, call: Call, tmp_path: Path, name: str, has_nulls: bool
) -> None:
    """ShareGPT and Alpaca are read as the messages that they stand for, which is said once a file."""
    pytest.importorskip("transformers")
    line, messages = READ[name]
    if has_nulls:
        line = {**NULLS, "conversations": None, "instruction": None, **line}
    assert normalize_line(line)["messages"] == messages
    line = {key: value for key, value in line.items() if key != "tools"}  # the toy has no template
    write(tmp_path / "theirs.jsonl", *[line] * 3)
    write(tmp_path / "ours.jsonl", *[{"messages": messages}] * 3)
    theirs, ours = (ask(f"train {name}.jsonl --seed 1")["losses"] for name in ("theirs", "ours"))
    assert theirs == ours
    told = call("train theirs.jsonl --eval-file theirs.jsonl").stderr
    assert told.count("theirs.jsonl is read as ") == 1, told
    said = "Alpaca" if line.get("instruction") else "ShareGPT"
    assert f"theirs.jsonl is read as {said}: " in told
    assert "is read as" not in call("train ours.jsonl").stderr
    sample = "sample --max-tokens 2 --temperature 0 --file"
    sampled = call(f"{sample} theirs.jsonl --out answers.jsonl")
    assert sampled.stderr.count("theirs.jsonl is read as ") == 1, sampled.stderr
    assert "The last answers of 3 chats are left out" in sampled.stderr
    call(f"{sample} ours.jsonl --out expected.jsonl")
    answers, expected = (
        [json.loads(one) for one in (tmp_path / f"{file}.jsonl").read_text().splitlines()]
        for file in ("answers", "expected")
    )
    assert [one["samples"] for one in answers] == [one["samples"] for one in expected]
    kept = {name: value for name, value in line.items() if name != "prompt"}
    assert {name: answers[0][name] for name in kept} == kept


def test_rewards_get_the_line_as_it_is(call: Call, tmp_path: Path) -> None:
    """The reward function of GRPO gets the line of the file, with its own keys and its nulls."""
    line = {"conversations": [HUMAN], "expected": None, "prompt": None}
    write(tmp_path / "x.jsonl", line)
    (tmp_path / "reward.py").write_text(
        f"def reward(answer, example):\n    assert example == {line!r}\n    return len(answer)\n"
    )
    result = call("train x.jsonl --grpo reward.py --group-size 2 --max-tokens 2", code=0)
    assert result.stderr.count("x.jsonl is read as ShareGPT: ") == 1


TOKENS = {"tokens": [5, 6, 7]}


@pytest.mark.parametrize(
    ("line", "nulled"),
    [
        *(
            (line, line)
            for line in (
                {"messages": ANSWERED},
                {"prompt": "a", "completion": "b"},
                {"prompt": "a", "answer": "b"},
                {"prompt": ANSWERED[:1], "completion": ANSWERED[1:]},
                {"text": "abc"},
                TOKENS,
                {**TOKENS, "weights": [0, 1, 1]},
                {"input_ids": [5, 6, 7], "labels": [5, -100, 7]},
                {"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1]},
            )
        ),
        (
            {"messages": ANSWERED, "tools": [{"name": "f"}]},
            {
                "messages": [{"name": None, "tool_calls": None, **one} for one in ANSWERED],
                "tools": [{"name": "f", "strict": None}],
            },
        ),
    ],
    ids=repr,
)
def test_keys_that_are_null_are_absent(
    tmp_path: Path, line: dict[str, Any], nulled: dict[str, Any]
) -> None:
    """A line is the same example with nulls under every other key, and within messages and tools."""
    others = ["response", "input_ids", "attention_mask", "completion_mask", "conversations"]
    plain = write(tmp_path / "plain.jsonl", line)
    nulls = write(tmp_path / "nulls.jsonl", {**NULLS, **dict.fromkeys(others), **nulled})
    assert encode(Path(nulls)) == encode(Path(plain))


def test_prompts_whose_other_keys_are_null(ask: Ask, tmp_path: Path) -> None:
    """Prompts and chats, each with the key of the other as null, are sampled and keep the nulls."""
    pytest.importorskip("transformers")
    rows = [{"prompt": "a", "messages": None}, {"prompt": None, "messages": ANSWERED[:1]}]
    write(tmp_path / "x.jsonl", *rows)
    assert ask(SAMPLE)["new"] == 2
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [one["prompt"] for one in answers] == ["a", ANSWERED[:1]]
    assert answers[0]["messages"] is None
    assert ask(SAMPLE)["new"] == 0
