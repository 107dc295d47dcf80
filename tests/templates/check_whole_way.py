"""The page from a chat file to a merged model: transformers answers as `tinker` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from templates.way import NAMES, walk


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_way(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `train`, `chat`, `sample` and `checkpoint merge` transformers gives the same tokens."""
    monkeypatch.setenv("HOME", str(tmp_path))
    walked = walk(tmp_path, name)
    answer = walked.names["answer"]
    assert [answer(walked.merged, *question) for question in walked.questions] == walked.answers
    tokenizer = transformers.AutoTokenizer.from_pretrained(walked.merged)
    greeting, call, sentence = (tokenizer.decode(tokens) for tokens in walked.answers)
    assert "Which city?" in greeting
    assert "get_weather" in call
    assert "It is" in sentence
    for folder, is_tied in (("base-model", True), ("merged", False)):
        config = json.loads((tmp_path / folder / "config.json").read_text())
        assert config["tie_word_embeddings"] == is_tied
    before = transformers.AutoTokenizer.from_pretrained(tmp_path / "base-model")
    assert tokenizer.chat_template == before.chat_template
