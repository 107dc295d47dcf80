"""The tokenizers of commands: many are read without transformers, and do the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import find_imported

from tinker._tokenizers import TokenizerSource, load
from tinker.cli.clients import read_tokenizer
from tinker.local.engines import PACKAGED_FOLDER

SETTINGS: dict[str, Any] = json.loads((PACKAGED_FOLDER / "tokenizer_config.json").read_text())
TOKENIZER: dict[str, Any] = json.loads((PACKAGED_FOLDER / "tokenizer.json").read_text())
END = "<|endoftext|>"
BEGINS_WITH_END = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": END, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {END: {"id": END, "ids": [256], "tokens": [END]}},
}
CUT = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
PADDED = {
    "strategy": {"Fixed": 8},
    "direction": "Right",
    "pad_id": 257,
    "pad_type_id": 0,
    "pad_token": "<|pad|>",
}
CALLED = {
    "id": 258,
    "content": "<|call|>",
    "single_word": False,
    "lstrip": False,
    "rstrip": True,
    "normalized": False,
}
TEXTS = [
    "",
    "hello  world\n",
    f"a{END}b <|pad|>",
    "é ß 你好 😀",
    " don't !  A.B\r\n\t",
    "x<|call|>  y",
    "\x00",
]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"

Write = Callable[..., TokenizerSource]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a tokenizer's files, with changes to those of the packaged model."""

    def make(
        settings: dict[str, Any], tokenizer: dict[str, Any], model_type: str | None = "llama"
    ) -> TokenizerSource:
        pytest.importorskip("tokenizers")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS | settings))
        (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER | tokenizer))
        if model_type is not None:
            (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        return TokenizerSource(str(tmp_path))

    return make


@pytest.mark.parametrize("model_type", ["llama", None])
@pytest.mark.parametrize(
    ("settings", "tokenizer"),
    [
        ({}, {}),
        ({"bos_token": END, "eos_token": None}, {}),
        ({"bos_token": END}, {"post_processor": BEGINS_WITH_END}),
        ({}, {"truncation": CUT, "padding": PADDED}),
        ({}, {"added_tokens": [*TOKENIZER["added_tokens"], CALLED | {"special": True}]}),
        ({}, {"added_tokens": [*TOKENIZER["added_tokens"], CALLED | {"special": False}]}),
        ({"chat_template": TEMPLATE}, {}),
    ],
)
def test_it_does_the_same(
    write: Write, settings: dict[str, Any], tokenizer: dict[str, Any], model_type: str | None
) -> None:
    """Texts, tokens, special tokens and chat template are those of transformers' tokenizer."""
    pytest.importorskip("transformers")
    source = write(settings, tokenizer, model_type)
    ours, theirs = read_tokenizer(source), load(source)
    assert ours is not None
    for special in (True, False):
        assert [ours.encode(text, add_special_tokens=special) for text in TEXTS] == [
            theirs.encode(text, add_special_tokens=special) for text in TEXTS
        ]
        runs = [[], [256], [104, 105, 256, 257, 106], [195], [240, 159, 152], list(range(258))]
        assert [ours.decode(run, skip_special_tokens=special) for run in runs] == [
            theirs.decode(run, skip_special_tokens=special) for run in runs
        ]
    assert sorted(ours.all_special_ids) == sorted(theirs.all_special_ids)
    for name in ("chat_template", "eos_token", "eos_token_id"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.get_vocab() == theirs.get_vocab()


@pytest.mark.parametrize(
    "settings",
    [
        {"clean_up_tokenization_spaces": True},
        {"tokenizer_class": "LlamaTokenizer"},
        {"add_bos_token": True},
        {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}},
        {"bos_token": "<s>"},
        {"eos_token": {"content": END, "lstrip": True}},
    ],
)
def test_settings_that_need_transformers(write: Write, settings: dict[str, Any]) -> None:
    """A tokenizer whose settings change its tokenizer.json is loaded by transformers."""
    assert read_tokenizer(write({}, {})) is not None
    assert read_tokenizer(write(settings, {})) is None


def test_other_files(write: Write, tmp_path: Path) -> None:
    """Another type of model, an older file and an unreadable one are left to transformers."""
    assert read_tokenizer(write({}, {}, "qwen2")) is None
    source = write({}, {})
    assert read_tokenizer(source) is not None
    (tmp_path / "special_tokens_map.json").write_text("{}")
    assert read_tokenizer(source) is None
    (tmp_path / "special_tokens_map.json").unlink()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert read_tokenizer(source) is None
    assert read_tokenizer(TokenizerSource("nobody/nothing")) is None


@pytest.mark.parametrize(
    "command",
    ["sample hi --max-tokens 2", "chat --max-tokens 2", "train data.jsonl --max-steps 1"],
)
def test_sampling_and_training_import_little(
    server: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the packaged tokenizer no command imports transformers, torch or the hub's client."""
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "completion": " b"}\n')
    heavy = ("transformers", "torch", "huggingface_hub", "starlette")
    assert find_imported(heavy, f"--base-url {server} {command}", "hi\n") == []


@pytest.mark.parametrize("command", ["run list", "model list", "checkpoint list", "auth status"])
def test_lists_import_little(server: str, command: str) -> None:
    """A command that shows a list needs no numpy, and no tokenizer."""
    heavy = ("numpy", "tokenizers", "transformers", "torch", "httpx", "tinker.training_client")
    assert find_imported(heavy, f"--base-url {server} {command}") == []
