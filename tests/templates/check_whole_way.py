"""The page that leads from a chat file to a merged model, with two templates: transformers answers
as `tinker` does.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from templates.way import NAMES, walk


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_way(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat file with calls, `tinker train`, `chat`, `sample` and `checkpoint merge`: transformers
    gives the same tokens.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    walked = walk(tmp_path, name)
    answer = walked.names["answer"]
    assert [answer(walked.merged, *question) for question in walked.questions] == walked.answers
    tokenizer = transformers.AutoTokenizer.from_pretrained(walked.merged)
    greeting, call, sentence = (tokenizer.decode(tokens) for tokens in walked.answers)
    assert "Which city?" in greeting
    assert "get_weather" in call
    assert "It is" in sentence
    base, merged = (
        json.loads((tmp_path / one / "config.json").read_text()) for one in ("base-model", "merged")
    )
    assert (base["tie_word_embeddings"], merged["tie_word_embeddings"]) == (True, False)
    assert (
        tokenizer.chat_template
        == transformers.AutoTokenizer.from_pretrained(tmp_path / "base-model").chat_template
    )
