"""Paths of the wrong kind, a folder for a file or a file for a folder, however they are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from cli.conftest import Call, Run
from click.testing import Result
from support.commands import list_commands

from tinker.cli import main

DATA = '{"text": "to be or not to be"}\n'
#: What a command needs besides the path, to come to where it uses it.
NEEDED: dict[str, list[str]] = {
    "billing checkpoint-storage": [],
    "billing usage": ["today"],
    "checkpoint download": ["RUN"],
    "checkpoint merge": ["RUN", "--base", "folder", "--out", "new"],
    "conformance": ["--only", "service.capabilities"],
    "run compare": ["log.jsonl", "log.jsonl"],
    "run usage": ["RUN_ID"],
    "sample": ["--max-tokens", "2"],
    "session export-trace": ["SESSION"],
    "train": ["data.jsonl", "--model", "tinker/toy", "--max-steps", "1"],
}
#: Options that are of use with others only.
TOGETHER = {
    "serve --tls-cert": ["--tls-key", "data.jsonl"],
    "serve --tls-key": ["--tls-cert", "data.jsonl"],
    "sample --out": ["--file", "data.jsonl"],
}


def list_paths() -> Iterator[tuple[str, click.Parameter]]:
    """Yield every option and argument that is a path, with its command."""
    for words, command in list_commands(main):
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                yield " ".join(words), parameter


def wrong_paths(kind: click.Path) -> list[str]:
    """Return paths that cannot be used as one of this kind."""
    return [
        *([] if kind.dir_okay else ["folder"]),
        *([] if kind.file_okay else ["data.jsonl"]),
        "data.jsonl/below",
    ]


PATHS = [
    (words, one.opts[-1], path) for words, one in list_paths() for path in wrong_paths(one.type)
]  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def places(tmp_path: Path) -> None:
    """Make a folder, a file of data and a log, in the folder that commands run in."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.jsonl").write_text(DATA)
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 1.0}\n')


def check(result: Result, path: str) -> None:
    """Check that a command failed for a path, and said so in one sentence in plain words."""
    assert result.exit_code in (1, 2)
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert path.partition("/")[0] in sentence
    for never in ("Traceback", "This is a bug", "Unexpected error", "Errno"):
        assert never not in result.stderr


@pytest.mark.parametrize(("words", "option", "path"), PATHS)
def test_a_path_of_the_wrong_kind(call: Call, run: Run, words: str, option: str, path: str) -> None:
    """For every option and argument that is a path, the command fails with one sentence."""
    known = {"RUN": run.external, "RUN_ID": run.run_id, "SESSION": run.session_id}
    needed = [
        known.get(one, one)
        for one in [*NEEDED.get(words, []), *TOGETHER.get(f"{words} {option}", [])]
    ]
    given = [option, path] if option.startswith("-") else [path]
    arguments = [*needed, *given] if option.startswith("-") else [*given, *needed[1:]]
    check(call(*words.split(), *arguments), path)


@pytest.mark.parametrize(
    ("variable", "path", "words"),
    [
        ("TINKER_PRICES", "folder", "run usage RUN_ID"),
        ("TINKER_CA_FILE", "folder", "run list"),
        ("TINKER_CLIENT_CERT", "folder", "run list"),
        ("TINKER_LOCAL_DIR", "data.jsonl", "--base-url local://toy model list"),
        ("TINKER_DUMP_HTTP", "folder", "run list"),
    ],
)
def test_a_variable_of_the_wrong_kind(
    call: Call, run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, path: str, words: str
) -> None:
    """A variable that is a path is treated like an option."""
    monkeypatch.setenv(variable, path)
    result = call(*(run.run_id if word == "RUN_ID" else word for word in words.split()))
    check(result, path)
