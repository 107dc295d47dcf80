"""Files that other programs have written: they are read, or one line says what is
wrong and where.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tinker._basics import config as _config
from tinker.cli import training
from tinker.cli.reading import normalize_line

Call = Callable[..., Result]
Ask = Callable[..., Any]

UNREACHABLE = "http://127.0.0.1:1"
REWARD = "def reward(answer, example):\n    return len(answer)\n"
SAMPLE = ("--out", "answers.jsonl", "--max-tokens", "2")

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


def is_refused(result: Result, words: str) -> None:
    """Assert that a command failed with one line that has these words, and called nothing a bug."""
    assert result.exit_code in (1, 2), result.output
    assert words in result.stderr, result.stderr
    assert "This is a bug" not in result.stderr
    assert result.stderr.count("Error:") == 1


@pytest.fixture
def reward(tmp_path: Path) -> str:
    """Return the name of a file with a reward function."""
    (tmp_path / "reward.py").write_text(REWARD)
    return "reward.py"


# Lines


@pytest.mark.parametrize("command", ["train", "eval", "grpo", "sample", "watch", "compare", "out"])
@pytest.mark.parametrize("name", SPOILED)
def test_a_line_that_is_wrong(
    call: Call, tmp_path: Path, reward: str, name: str, command: str
) -> None:
    """Every command that reads lines names the file and the line, and asks no
    server for anything.
    """
    line, words = SPOILED[name]
    good = b'{"index": 0, "step": 1, "loss": 1, "text": "a", "prompt": "a", "completion": "b"}\n'
    (tmp_path / "x.jsonl").write_bytes(good + line + b"\n" + good)
    (tmp_path / "good.jsonl").write_bytes(good)
    calls = {
        "train": ["train", "x.jsonl"],
        "eval": ["train", "good.jsonl", "--eval-file", "x.jsonl"],
        "grpo": ["train", "x.jsonl", "--grpo", reward],
        "sample": ["sample", "--file", "x.jsonl", *SAMPLE],
        "watch": ["run", "watch", "x.jsonl", "--once"],
        "compare": ["run", "compare", "x.jsonl"],
        "out": ["sample", "--file", "good.jsonl", "--out", "x.jsonl"],
    }
    server = {} if command == "grpo" else {"base_url": UNREACHABLE}  # whose tokenizer it needs
    is_refused(call(*calls[command], **server), f"x.jsonl, {words}")
    assert (tmp_path / "x.jsonl").read_bytes() == good + line + b"\n" + good


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_is_no_text(call: Call, tmp_path: Path, reward: str, name: str) -> None:
    """A compressed file, and one in UTF-16, is named as such wherever a text is read."""
    content, words = WHOLE[name]
    content += b"\n"
    for file in ("x.jsonl", "x.json", "x.txt", "x.toml"):
        (tmp_path / file).write_bytes(content)
    (tmp_path / "good.jsonl").write_text('{"prompt": "a", "text": "a"}\n')
    for arguments in (
        ["train", "x.jsonl"],
        ["train", "good.jsonl", "--eval-file", "x.jsonl"],
        ["sample", "--file", "x.jsonl", *SAMPLE],
        ["sample", "--file", "good.jsonl", "--out", "x.jsonl"],
        ["sample", "--prompt-file", "x.txt"],
        ["sample", "--prompt-file", "x.json"],
        ["run", "watch", "x.jsonl", "--once"],
        ["run", "compare", "x.jsonl"],
        ["train", "good.jsonl", "--config", "x.toml"],
    ):
        file = next(one for one in arguments if one.startswith("x."))
        is_refused(call(*arguments, base_url=UNREACHABLE), file + words)
        assert (tmp_path / file).read_bytes() == content
    is_refused(call("train", "x.jsonl", "--grpo", reward), f"x.jsonl{words}")
    is_refused(call("sample", input=content, base_url=UNREACHABLE), f"standard input{words}")
    is_refused(call("train", "-", input=content, base_url=UNREACHABLE), f"standard input{words}")


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
    """Texts with separators of lines are read, answered, and found again in a second run, which
    answers nothing twice.
    """
    pytest.importorskip("transformers")
    line = {"prompt": text, "completion": text, "note": text, "step": 1, "loss": 2.0}
    lines = f"{json.dumps(line, ensure_ascii=ascii_only)}\r\n" * 2
    (tmp_path / "x.jsonl").write_bytes(lines.encode())
    assert len(ask("train", "x.jsonl", "--batch-size", "1")["losses"]) == 2
    assert ask("sample", "--file", "x.jsonl", *SAMPLE)["new"] == 2
    out = tmp_path / "answers.jsonl"
    whole = out.read_bytes()
    assert json.loads(whole.split(b"\n")[0])["note"] == text
    assert ask("sample", "--file", "x.jsonl", *SAMPLE)["new"] == 0
    assert out.read_bytes() == whole
    result = call("run", "watch", "x.jsonl", "--once")
    assert (result.exit_code, result.stdout) == (0, "step 1 loss 2.0000\n" * 2), result.stderr


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 9, 30, 60])
def test_an_answer_that_was_cut_is_sampled_again(ask: Ask, tmp_path: Path, cut: int) -> None:
    """However many bytes of the last answer are missing, within a character too, the file is
    completed as if nothing had been.
    """
    pytest.importorskip("transformers")
    (tmp_path / "x.jsonl").write_text(
        '{"prompt": "1", "note": "b\u2028é😀"}\n{"prompt": "2", "note": "b\u2028é😀"}\n', "utf-8"
    )
    arguments = ("sample", "--file", "x.jsonl", *SAMPLE, "--temperature", "0")
    ask(*arguments)
    out = tmp_path / "answers.jsonl"
    whole = out.read_bytes()
    out.write_bytes(whole[:-cut])
    assert ask(*arguments)["new"] == 1
    assert out.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [b"my notes", b"my notes\n", b'{"a": 1}\n{"b"', b"\xff", b'{"index": 0, "prompt": "1"}\nnotes'],
)
def test_a_file_that_is_not_of_answers_keeps_its_bytes(
    call: Call, tmp_path: Path, content: bytes
) -> None:
    """A file of something else, given as --out by mistake, is refused as it is, also where its last
    line has no end.
    """
    (tmp_path / "x.jsonl").write_text('{"prompt": "1"}\n')
    (tmp_path / "notes.txt").write_bytes(content)
    result = call("sample", "--file", "x.jsonl", "--out", "notes.txt", base_url=UNREACHABLE)
    is_refused(result, "notes.txt, line ")
    assert "notes.txt does not contain answers of this command" in result.stderr
    assert (tmp_path / "notes.txt").read_bytes() == content


def test_byte_order_marks(ask: Ask, call: Call, tmp_path: Path) -> None:
    """The mark is no part of a text: not of a file of options, of a log, of prompts in a file or a
    pipe, nor between joined files.
    """
    pytest.importorskip("transformers")
    line = b'{"prompt": "abc", "completion": "d", "step": 1, "loss": 2.0}\n'
    (tmp_path / "x.jsonl").write_bytes((codecs.BOM_UTF8 + line) * 2)
    (tmp_path / "options.toml").write_bytes(codecs.BOM_UTF8 + b"batch-size = 1\r\n")
    (tmp_path / "prompt.txt").write_bytes(codecs.BOM_UTF8 + b"abc\r\n")
    (tmp_path / "prompt.json").write_bytes(codecs.BOM_UTF8 + b'["abc"]')
    assert len(ask("train", "x.jsonl", "--config", "options.toml")["losses"]) == 2
    assert call("run", "watch", "x.jsonl", "--once").stdout == "step 1 loss 2.0000\n" * 2
    options = ("--max-tokens", "2", "--temperature", "0")
    expected = ask("sample", "abc", *options)["samples"]
    assert ask("sample", *options, "--prompt-file", "prompt.txt")["samples"] == expected
    assert ask("sample", *options, "--prompt-file", "prompt.json")["samples"] == expected
    assert ask("sample", *options, input=codecs.BOM_UTF8 + b"abc\r\n")["samples"] == expected


# Whole texts


@pytest.mark.parametrize("name", NOT_TEXT)
def test_prompts_that_are_no_text(call: Call, tmp_path: Path, name: str) -> None:
    """A prompt file and a pipe that are not UTF-8 are named, with the line."""
    content, words = NOT_TEXT[name]
    spoiled = content if name in WHOLE else b"one\n" + content
    where = words if name in WHOLE else f", {words}"
    for file in ("prompt.txt", "prompt.json", "options.toml"):
        (tmp_path / file).write_bytes(spoiled)
    (tmp_path / "x.jsonl").write_text('{"text": "abc"}\n')
    is_refused(
        call("sample", "--prompt-file", "prompt.txt", base_url=UNREACHABLE), f"prompt.txt{where}"
    )
    is_refused(
        call("sample", "--prompt-file", "prompt.json", base_url=UNREACHABLE), f"prompt.json{where}"
    )
    is_refused(
        call("train", "x.jsonl", "--config", "options.toml", base_url=UNREACHABLE),
        f"options.toml{where}",
    )
    is_refused(call("sample", base_url=UNREACHABLE, input=spoiled), f"standard input{where}")


def test_turns_in_a_pipe(call: Call) -> None:
    """A chat in a pipe is UTF-8, with or without a mark; a line that is not is refused with its
    number.
    """
    pytest.importorskip("transformers")
    options = ("chat", "--max-tokens", "4", "--temperature", "0")
    turns = ["é", "b\u2028c"]
    said = call(*options, input="\n".join(turns).encode()).stdout
    assert call(*options, input=codecs.BOM_UTF8 + "\r\n".join(turns).encode()).stdout == said
    is_refused(
        call(*options, input=b"hi\ncaf\xe9\n"),
        "standard input, line 2: not text in UTF-8: byte 0xe9",
    )


def test_keys_that_are_no_text(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in a pipe or in a file that is not UTF-8 is refused, with the name of the file."""
    monkeypatch.setattr(_config, "HOSTED_URL", UNREACHABLE)
    is_refused(
        call("auth", "login", base_url=UNREACHABLE, input=b"tml-\xe9\n"),
        "standard input, line 1: not text in UTF-8",
    )
    (tmp_path / "key").write_bytes(b"tml-\xe9\n")
    is_refused(
        call("serve", "--engine", "toy", "--port", "0", "--api-key-file", "key"),
        "key, line 1: not text in UTF-8",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r'["ab\ud83d"]', r"prompt.json: half of a character, \ud83d, behind "),
        ("[" + "1" * 5000 + "]", "prompt.json: not JSON: a number of more than 4,300 digits"),
        ("[" * 100_000, "prompt.json: not JSON: too many brackets in each other"),
        ('["a",\n"b"', "prompt.json, line 2: not JSON: Expecting ',' delimiter (column 4)"),
        ("[" + "1" * 400 + "]", "prompt.json: prompt 0"),
    ],
)
def test_prompts_in_json_that_are_wrong(call: Call, tmp_path: Path, text: str, words: str) -> None:
    """A JSON file of prompts is read as strictly as lines are."""
    (tmp_path / "prompt.json").write_text(text)
    is_refused(call("sample", "--prompt-file", "prompt.json", base_url=UNREACHABLE), words)


@pytest.mark.parametrize(
    "text",
    [
        "lr = " + "1" * 5000,
        "lr = " + "[" * 100_000,
        'model = "a\\ud83d"',
        "lr = 1\0",
        "lr = " + "1" * 400,
        'model = "a\\u0000"',
    ],
)
def test_options_in_a_file_that_are_wrong(call: Call, tmp_path: Path, text: str) -> None:
    """A file of options that no parser of TOML takes, or a value that no option takes, is refused
    in one line.
    """
    (tmp_path / "options.toml").write_text(text)
    (tmp_path / "x.jsonl").write_text('{"text": "abc"}\n')
    is_refused(call("train", "x.jsonl", "--config", "options.toml"), "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["sample", "caf\udce9"],
        ["sample", "a", "--stop", "\udce9"],
        ["sample", "a", "--model", "caf\udce9"],
        ["chat", "--system", "caf\udce9"],
        ["train", "x.jsonl", "--name", "caf\udce9"],
        ["run", "info", "caf\udce9"],
        ["checkpoint", "list", "--run-id", "caf\udce9"],
    ],
    ids=" ".join,
)
def test_arguments_that_are_no_text(call: Call, tmp_path: Path, arguments: list[str]) -> None:
    """An argument in Latin-1, which Python gets as half of a surrogate pair, is refused and named
    before anything is sent.
    """
    (tmp_path / "x.jsonl").write_text('{"text": "abc"}\n')
    result = call(*arguments, base_url=UNREACHABLE, input="")
    is_refused(result, "not text in UTF-8: byte 0xe9")
    assert result.exit_code == 2


def test_files_whose_names_are_no_text(ask: Ask, call: Call, tmp_path: Path) -> None:
    """The name of a file may be any bytes: its text is what counts."""
    name = os.fsdecode(b"caf\xe9.jsonl")
    try:
        (tmp_path / name).write_text('{"text": "abc", "step": 1, "loss": 2.0}\n')
    except OSError:
        pytest.skip("this file system has names of text only")
    assert len(ask("train", name)["losses"]) == 1
    assert call("run", "watch", name, "--once").stdout == "step 1 loss 2.0000\n"


@pytest.mark.parametrize(
    "line",
    ['{"step": %s, "loss": 1}', '{"step": 1, "loss": %s}', '{"step": 1, "steps": %s, "loss": 1}'],
)
@pytest.mark.parametrize("number", ["1" * 400, "1e999", "-" + "9" * 4000, "NaN"])
def test_numbers_of_a_log_that_have_no_room(
    call: Call, tmp_path: Path, line: str, number: str
) -> None:
    """A log with a number that is larger than a float is shown, or refused in one line."""
    (tmp_path / "log.jsonl").write_text((line % number + "\n") * 2)
    for command in (["run", "watch", "log.jsonl", "--once"], ["run", "compare", "log.jsonl"]):
        result = call(*command, base_url=UNREACHABLE)
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
        *[
            (
                (
                    '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", '
                    '"content": "b", "NAME": %s}]}'
                ).replace("NAME", name),
                f"line 2: message 1 has the {name} ",
            )
            for name in ("weight", "train", "trainable")
        ],
    ],
)
def test_weights_that_are_no_finite_numbers(
    call: Call, ask: Ask, tmp_path: Path, line: str, words: str, weight: str
) -> None:
    """A weight that no float32 has is refused with the file and the line, and no run is created."""
    before = ask("run", "list", "--limit", "0")["runs"]
    good = '{"tokens": [5, 6, 7], "weights": [0, true, 0.5]}\n'
    (tmp_path / "x.jsonl").write_text(f"{good}{line % weight}\n{good}")
    (tmp_path / "good.jsonl").write_text(good)
    is_refused(call("train", "x.jsonl"), f"x.jsonl, {words}")
    is_refused(call("train", "good.jsonl", "--eval-file", "x.jsonl"), f"x.jsonl, {words}")
    assert ask("run", "list", "--limit", "0")["runs"] == before


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
READ: dict[str, tuple[dict[str, Any], list[dict[str, str]]]] = {
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        ANSWERED,
    ),
    "ShareGPT with roles of messages": (
        {"conversations": [{"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}]},
        ANSWERED,
    ),
    "ShareGPT, system": (
        {
            "conversations": [
                {"from": "system", "value": "s"},
                {"from": "human", "value": "a"},
                {"from": "gpt", "value": "b"},
            ]
        },
        SYSTEM + ANSWERED,
    ),
    "ShareGPT, system beside it": (
        {
            "system": "s",
            "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        },
        SYSTEM + ANSWERED,
    ),
    "ShareGPT, empty system beside it": (
        {
            "system": "",
            "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        },
        ANSWERED,
    ),
    "ShareGPT, tool": (
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "gpt", "value": "call"},
                {"from": "tool", "value": "1"},
                {"from": "observation", "value": "2"},
                {"from": "function_response", "value": "3"},
                {"from": "gpt", "value": "b"},
            ],
            "tools": ["t"],
        },
        chat(
            ("user", "a"),
            ("assistant", "call"),
            ("tool", "1"),
            ("tool", "2"),
            ("tool", "3"),
            ("assistant", "b"),
        ),
    ),
    "messages of another name": ({"conversations": ANSWERED}, ANSWERED),
    "Alpaca": ({"instruction": "a", "input": "", "output": "b"}, ANSWERED),
    "Alpaca without input": ({"instruction": "a", "output": "b"}, ANSWERED),
    "Alpaca with input": (
        {"instruction": "a", "input": "c", "output": "b"},
        chat(("user", "a\nc"), ("assistant", "b")),
    ),
    "Alpaca, system": (
        {"instruction": "a", "input": "", "output": "b", "system": "s"},
        SYSTEM + ANSWERED,
    ),
    "Alpaca, empty system": (
        {"instruction": "a", "input": "", "output": "b", "system": ""},
        ANSWERED,
    ),
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
    """ShareGPT and Alpaca train and are sampled from as the messages that they stand for, and a
    line says so once for the file.
    """
    pytest.importorskip("transformers")
    line, messages = READ[name]
    tools = line.get("tools")
    if has_nulls:
        line = {**NULLS, "conversations": None, "instruction": None, **line}
    plain = {"messages": messages, **({"tools": tools} if tools else {})}
    assert normalize_line(line)["messages"] == messages
    line, plain = (
        {key: value for key, value in one.items() if key != "tools"} for one in (line, plain)
    )  # the toy has no template
    (tmp_path / "theirs.jsonl").write_text((json.dumps(line) + "\n") * 3)
    (tmp_path / "ours.jsonl").write_text((json.dumps(plain) + "\n") * 3)
    losses = [
        ask("train", file, "--seed", "1")["losses"] for file in ("theirs.jsonl", "ours.jsonl")
    ]
    assert losses[0] == losses[1]
    told = call("train", "theirs.jsonl", "--eval-file", "theirs.jsonl").stderr
    assert told.count("theirs.jsonl is read as ") == 1, told
    said = "Alpaca" if line.get("instruction") else "ShareGPT"
    assert f"theirs.jsonl is read as {said}: " in told
    assert "is read as" not in call("train", "ours.jsonl").stderr
    arguments = ("--max-tokens", "2", "--temperature", "0")
    sampled = call("sample", "--file", "theirs.jsonl", "--out", "answers.jsonl", *arguments)
    assert sampled.stderr.count("theirs.jsonl is read as ") == 1, sampled.stderr
    assert "The last answers of 3 chats are left out" in sampled.stderr
    call("sample", "--file", "ours.jsonl", "--out", "expected.jsonl", *arguments)
    answers, expected = (
        [json.loads(one) for one in (tmp_path / file).read_text().splitlines()]
        for file in ("answers.jsonl", "expected.jsonl")
    )
    assert [one["samples"] for one in answers] == [one["samples"] for one in expected]
    kept = {name: value for name, value in line.items() if name != "prompt"}
    assert {name: answers[0][name] for name in kept} == kept


def test_rewards_get_the_line_as_it_is(call: Call, tmp_path: Path) -> None:
    """The reward function of GRPO gets the line of the file, with its own keys and its nulls."""
    line = {"conversations": [{"from": "human", "value": "a"}], "expected": None, "prompt": None}
    (tmp_path / "x.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "reward.py").write_text(
        f"def reward(answer, example):\n    assert example == {line!r}\n    return len(answer)\n"
    )
    result = call(
        "train", "x.jsonl", "--grpo", "reward.py", "--group-size", "2", "--max-tokens", "2"
    )
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("x.jsonl is read as ShareGPT: ") == 1


TOKENS = {"tokens": [5, 6, 7]}


@pytest.mark.parametrize(
    "line",
    [
        {"messages": ANSWERED},
        {"prompt": "a", "completion": "b"},
        {"prompt": "a", "answer": "b"},
        {"prompt": ANSWERED[:1], "completion": ANSWERED[1:]},
        {"text": "abc"},
        TOKENS,
        {**TOKENS, "weights": [0, 1, 1]},
        {"input_ids": [5, 6, 7], "labels": [5, -100, 7]},
        {"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1]},
    ],
    ids=repr,
)
def test_keys_that_are_null_are_absent(tmp_path: Path, line: dict[str, Any]) -> None:
    """A line of each kind is the same example with every key of the other kinds as null, as
    libraries of tables write them.
    """
    everything = {
        **NULLS,
        **dict.fromkeys(
            ["response", "input_ids", "attention_mask", "completion_mask", "conversations"]
        ),
    }
    (tmp_path / "plain.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "nulls.jsonl").write_text(json.dumps({**everything, **line}) + "\n")
    assert encode(tmp_path / "nulls.jsonl") == encode(tmp_path / "plain.jsonl")


def test_keys_of_messages_that_are_null_are_absent(tmp_path: Path) -> None:
    """Nulls within messages and tools are absent too; a template that asks whether a key is there
    does not see them.
    """
    nulled = [{"name": None, "tool_calls": None, **one} for one in ANSWERED]
    (tmp_path / "plain.jsonl").write_text(
        json.dumps({"messages": ANSWERED, "tools": [{"name": "f"}]}) + "\n"
    )
    (tmp_path / "nulls.jsonl").write_text(
        json.dumps({"messages": nulled, "tools": [{"name": "f", "strict": None}]}) + "\n"
    )
    assert encode(tmp_path / "nulls.jsonl") == encode(tmp_path / "plain.jsonl")


def test_prompts_whose_other_keys_are_null(ask: Ask, tmp_path: Path) -> None:
    """A file of prompts and chats, each with the key of the other as null, is sampled for, and the
    answers keep the nulls.
    """
    pytest.importorskip("transformers")
    rows = [{"prompt": "a", "messages": None}, {"prompt": None, "messages": ANSWERED[:1]}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ask("sample", "--file", "x.jsonl", *SAMPLE)["new"] == 2
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [one["prompt"] for one in answers] == ["a", ANSWERED[:1]]
    assert answers[0]["messages"] is None
    assert ask("sample", "--file", "x.jsonl", *SAMPLE)["new"] == 0
