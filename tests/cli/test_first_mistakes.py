"""What a newcomer types, and the whole text of the error: `first_mistakes.txt`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.cases import for_each
from support.mistakes import name_ids, read_mistakes

from tinker.cli import main

MISTAKES = read_mistakes(Path(__file__).with_name("first_mistakes.txt"), "$ ")
FILES = {
    "data.jsonl": '{"prompt": "a", "completion": "b"}\n',
    "empty.jsonl": "",
    "words.txt": "hello world\n",
    "broken.jsonl": '{"prompt": "a", "completion": "b"}\n{"prompt": \n',
    "answers.jsonl": '{"question": "a", "answer": "b"}\n',
    "roles.jsonl": (
        '{"messages": [{"role": "human", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    ),
    "prompts.jsonl": '{"prompt": "a"}\n',
    "reward.py": "def reward(answer, example): return 0.0\n",
    "trl.yaml": "num_train_epochs: 2\n",
    "trl.toml": "num_train_epochs = 2\n",
    "dataset/dataset_info.json": "{}",
    "array.json": '[{"prompt": "a", "completion": "b"}]',
    "adapter/adapter_config.json": (
        '{"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}'
    ),
}


@pytest.fixture
def machine(server: str, home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the commands a server, and a folder with the files of the table."""
    monkeypatch.setenv("TINKER_BASE_URL", server)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


@for_each("typed, text", MISTAKES)
def test_first_mistakes(machine: None, server: str, typed: str, text: str) -> None:
    """A wrong command fails, and its error stream is exactly the text of the table."""
    host = server.removeprefix("http://")
    result = CliRunner().invoke(
        main,
        ["--patience", "0", *shlex.split(typed.replace("SERVER", host))[1:]],
        prog_name="tinker",
    )
    wrong_calls = ("Usage: ", "Error: no check has such a name")
    is_wrong_call = text.startswith(wrong_calls) or '"UsageError"' in text
    assert result.exit_code == (2 if is_wrong_call else 1)
    assert name_ids(result.stderr.rstrip().replace(host, "SERVER").replace("\n\n", "\n")) == text
