"""Commands and texts of others: nothing controls a pipe or a terminal, and no line is forged."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from cli.conftest import Call, served
from click.testing import Result
from support.commands import list_commands
from support.hostile import EVIL, EXPLANATIONS, FORGED, HostileApp, find_attacks
from support.terminals import show_on_terminal

import tinker
from tinker._basics import config as _config
from tinker.cli import main
from tinker.cli.app import LazyGroup
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
from tinker.testing import ScriptedSample, toy_server

_NOW = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
WINDOW = [f"{_NOW + datetime.timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}" for hours in (-1, 1)]

#: How each command is called; RUN, SESSION, PATH and SAMPLER stand for what is on the server.
CALLS: dict[str, list[list[str]]] = {
    "auth login": [[]],
    "auth logout": [[]],
    "auth status": [[]],
    "auth whoami": [[]],
    "billing checkpoint-storage": [[], ["--csv", "-"]],
    "billing usage": [WINDOW, [*WINDOW, "--rows"], [*WINDOW, "--sessions-csv", "-"]],
    "chat": [["--max-tokens", "2"]],
    "checkpoint create": [["--from", "PATH", "--name", "again"]],
    "checkpoint delete": [["PATH"], ["--run-id", "nobody:train:0"]],
    "checkpoint download": [["SAMPLER", "--output", "out"]],
    "checkpoint info": [["PATH"], ["tinker://nobody/weights/x"]],
    "checkpoint list": [[], ["--run-id", "RUN"]],
    "checkpoint merge": [["nobody", "--base", "base", "--out", "out"]],
    "checkpoint publish": [["PATH"]],
    "checkpoint push-hf": [["nobody"]],
    "checkpoint search": [[]],
    "checkpoint set-ttl": [["PATH", "--ttl", "7200"]],
    "checkpoint unpublish": [["PATH"]],
    "checkpoint upload": [["adapter"]],
    "doctor": [["--verbose", "--operations"]],
    "model list": [[]],
    "run compare": [["log.jsonl", "log.jsonl"], ["RUN"]],
    "run info": [["RUN"], ["nobody:train:0"]],
    "run list": [
        [],
        ["--columns", "id,name,model,owner,lora,updated,status,checkpoint,checkpoint_time"],
    ],
    "run usage": [["RUN"]],
    "run watch": [["log.jsonl", "--once"], ["RUN", "--once"]],
    "sample": [["abc", "--max-tokens", "2", "--model", "SAMPLER"], ["abc", "--max-tokens", "2"]],
    "session export-trace": [["SESSION"], ["SESSION", "--url-only"]],
    "session info": [["SESSION"]],
    "session list": [[]],
    "train": [["train.jsonl", "--rank", "2", "--max-steps", "2", "--name", "kept"]],
}
#: Commands that print nothing of a server, and why.
SILENT = {
    "completion": "prints a line of its own",
    "version": "prints versions of packages",
    "serve": "is a server",
    "conformance": "has a test of its own, because it takes long",
}


@attrs.frozen
class Hostile:
    """A server with a run, a checkpoint of each kind and metadata, spoiled on the way."""

    app: HostileApp
    url: str
    names: dict[str, str]

    def calls(self) -> list[list[str]]:
        """Return every call of every command."""
        return [
            [*command.split(), *(self.names.get(word, word) for word in arguments)]
            for command, several in CALLS.items()
            for arguments in several
        ]


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    """Yield the server."""
    state = State(ToyEngine, Settings(data_dir=tmp_path / "server"))
    plain = create_app(state)
    with served(plain) as url, tinker.ServiceClient({"k": "v"}, base_url=url) as service:
        training = service.create_lora_training_client(
            "tinker/toy", rank=2, user_metadata={"name": "n", "k": "v"}
        )
        names = {
            "RUN": training.result(10).model_id,
            "SESSION": training.model_id.partition(":")[0],
            "PATH": training.save_state("kept", user_metadata={"k": "v"}).result(10).path,
            "SAMPLER": training.save_weights_for_sampler("kept").result(10).path,
        }
    record = {"step": 1, f"loss{EVIL}": 2.0, "loss": 1.5}
    (tmp_path / "log.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "train.jsonl").write_text('{"tokens": [1, 2, 3, 4]}\n' * 3)
    app = HostileApp(plain)
    with served(app) as url:
        yield Hostile(app, url, names)
    state.close()


def attacks_of(result: Result) -> list[str]:
    """Return the control characters that a command printed."""
    return find_attacks(result.stdout) + find_attacks(result.stderr)


def test_every_command_is_called() -> None:
    """The tables of this module name every command that there is."""
    there = {
        " ".join(path)
        for path, command in list_commands(main)
        if not isinstance(command, LazyGroup)
    }
    assert CALLS.keys() | SILENT.keys() == there


def test_a_server_that_works(call: Call, hostile: Hostile) -> None:
    """With every text spoiled, no command prints a control character, and names show escapes."""
    shown = 0
    for arguments in hostile.calls():
        result = call(*arguments, base_url=hostile.url, input="hi\n")
        debug = call("--debug", *arguments, base_url=hostile.url, input="hi\n")
        if "-" not in arguments:  # what programs read is as the server sent it
            assert attacks_of(result) == attacks_of(debug) == [], arguments
        shown += "\\u202eevil" in result.stdout
    assert shown >= 10


@pytest.mark.parametrize("body", EXPLANATIONS.values(), ids=list(EXPLANATIONS))
def test_refusals(call: Call, hostile: Hostile, body: object) -> None:
    """However a server explains a refusal, each command prints it in one line of text."""
    shown = 0
    for status in (400, 401, 404, 500):
        hostile.app.answer = lambda path, status=status: (status, body)  # type: ignore[misc]
        for arguments in hostile.calls():
            result = call(*arguments, base_url=hostile.url, input="hi\n")
            assert attacks_of(result) == [], (status, arguments)
            shown += "evil" in result.stderr
    assert shown >= 50


def test_the_report_of_the_kit(call: Call, hostile: Hostile) -> None:
    """What a server answers is quoted in the findings, as text."""
    result = call("conformance --only", "sessions.*", base_url=hostile.url)
    assert "\\u202eevil" in result.stdout
    assert attacks_of(result) == []


def test_logging_in(call: Call, hostile: Hostile, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hosted service says of a key and its owner is text, also when it is read again."""
    monkeypatch.setattr(_config, "HOSTED_URL", hostile.url)
    for arguments in (["auth", "login"], ["auth", "logout"]):
        result = call(*arguments, base_url=hostile.url, input="tml-key\n", code=0)
        assert find_attacks(result.output) == [], arguments
        assert "evil" in result.output


def test_on_a_terminal(hostile: Hostile, tmp_path: Path) -> None:
    """A terminal gets only the colors and the movements of the program itself."""
    calls = [
        ["--base-url", hostile.url, "--patience", "0", *arguments]
        for arguments in hostile.calls()
        if arguments[0] != "chat"
    ]
    shown = show_on_terminal(calls, 500, tmp_path, [("delete?", "n\n"), ("Delete?", "n\n")])
    assert "\\x1b]0;owned" in shown
    plain = re.sub(r"\x1b(\[[0-9;?]*[a-zA-Z]|[=>])", "", shown).replace("\r", "")
    assert [one for one in find_attacks(plain) if not one.startswith(FORGED)] == []
    assert [line for line in plain.split("\n") if line.strip() == FORGED] == []


def test_sampled_text(call: Call, tmp_path: Path) -> None:
    """A terminal gets the lines of sampled text and nothing that controls it, a pipe all."""
    pytest.importorskip("transformers")
    text = f"one\n\ttwo{EVIL}\x1b[31mthree"
    with toy_server() as server, server.on_port() as url:
        server.script_samples(lambda prompt: ScriptedSample([*text.encode()]))
        options = ["--max-tokens", str(len(text.encode()))]
        assert call("sample a", *options, base_url=url).stdout_bytes == f"{text}\n".encode()
        assert (
            json.loads(call("-f json sample a", *options, base_url=url).stdout)["samples"][0][
                "text"
            ]
            == text
        )
        assert (
            call("chat", *options, base_url=url, input="hi\n").stdout_bytes == f"{text}\n".encode()
        )
        shown = show_on_terminal(
            [["--base-url", url, "sample", "a", *options], ["--base-url", url, "chat", *options]],
            500, tmp_path, [("> ", "hi\n"), ("three", "/quit\n")],
        )  # fmt: skip
    assert shown.count("one\r\n\ttwo\\x1b]0;owned\\x07") == 2, shown
    assert "\x1b]0" not in shown
    assert "\x1b[31m" not in shown


def test_a_table_of_numbers_for_programs(call: Call, hostile: Hostile, tmp_path: Path) -> None:
    """A file of CSV has the texts as the server sent them, for programs; so does JSON."""
    call("billing checkpoint-storage --csv s.csv", base_url=hostile.url)
    assert EVIL.encode() in (tmp_path / "s.csv").read_bytes()
    runs = json.loads(call("-f json run list", base_url=hostile.url).stdout)["runs"]
    assert runs[0]["training_run_id"].endswith(EVIL)
