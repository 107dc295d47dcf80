"""Help, versions, and how wrong calls end."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from cli.conftest import Ask, Call, find_imported, served
from click.testing import CliRunner
from starlette.responses import JSONResponse
from support.commands import list_commands
from tinker_wire import CONTRACT_VERSION

import tinker
from tinker._version import DISTRIBUTION_VERSION
from tinker.cli import main
from tinker.cli.app import LazyGroup
from tinker.cli.output import CommandFailed, convert_errors, to_failure

OFFICIAL = {
    "auth": "login logout status whoami",
    "billing": "checkpoint-storage usage",
    "checkpoint": "delete download info list publish push-hf set-ttl unpublish",
    "model": "list",
    "run": "info list",
    "session": "export-trace",
}


def test_every_command_has_help() -> None:
    """Each command says what it does, and ends with examples of itself, whose options it has."""
    problems = [
        problem
        for path, command in list_commands(main)
        for problem in find_help_problems(path, command)
    ]
    assert problems == []


def test_a_number_is_named_by_one_letter(call: Call) -> None:
    """The help shows what a number may be behind its description, not in the place of its name."""
    shown = call("train --help").stdout
    assert ("--learning-rate, --lr N " in shown, "RANGE" in shown) == (True, False)


def find_help_problems(path: tuple[str, ...], command: click.Command) -> list[str]:
    name = " ".join(path)
    result = CliRunner().invoke(main, [*path, "--help"], terminal_width=200)
    if result.exit_code != 0 or f"Usage: main {name}" not in result.stdout or not command.help:
        return [f"{name}: no help: {result.output}"]
    if isinstance(command, LazyGroup):
        return []
    text = result.stdout.partition("\nOptions:\n")[2].partition("Examples:\n")[2]
    examples = [shlex.split(line, comments=True) for line in text.partition("\n\n")[0].splitlines()]
    options = {option for one in [*main.params, *command.params] for option in one.opts}
    others = [
        f"{name}: an example of another command: {words}"
        for words in examples
        if not set(path) <= set(words)
    ]
    given = {word for words in examples for word in words if word.startswith("-")}
    unknown = [
        f"{name}: an example has {option}, which it does not know"
        for option in sorted(given - options)
    ]
    return [*others, *unknown] if examples else [f"{name}: no examples"]


def test_the_commands_of_the_official_client() -> None:
    """Every command that the official one has is there."""
    there = {" ".join(path) for path, _ in list_commands(main)}
    wanted = {f"{group} {name}" for group, names in OFFICIAL.items() for name in names.split()}
    assert wanted - there == set()


@pytest.mark.parametrize(
    "command", ["--help", "checkpoint list --help", "train --help", "auth login -h"]
)
def test_help_imports_little(command: str) -> None:
    """Help imports neither the client nor rich, so that it is fast."""
    heavy = ("httpx", "httpunk", "numpy", "rich", "msgspec", "attrs", "tinker_wire", "tinker.types")
    assert find_imported(heavy, command) == []


@pytest.mark.parametrize(
    "typed", ["help", "help train", "help run list", "run help list", "run help"]
)
def test_help_is_a_word_too(typed: str) -> None:
    """`help` before the name of a command, or after that of a group, shows what `--help` shows."""
    shown = CliRunner().invoke(main, typed.split())
    words = [word for word in typed.split() if word != "help"]
    asked = CliRunner().invoke(main, [*words, "--help"])
    assert (shown.exit_code, shown.stdout) == (0, asked.stdout)


def test_version(call: Call, ask: Ask) -> None:
    """The version is a line of text, or JSON; --deps adds the installed packages."""
    assert call("version").stdout == f"tinker {DISTRIBUTION_VERSION}\n"
    assert ask("version") == {"version": DISTRIBUTION_VERSION, "contract": CONTRACT_VERSION}
    packages = "Python torch transformers huggingface_hub zstandard starlette ray"
    assert list(ask("version --deps")["dependencies"]) == packages.split()
    line = call("version --deps").stdout.splitlines()[1]
    assert line == f"Python {platform.python_version()}"
    assert DISTRIBUTION_VERSION in call("--version").stdout


def test_interrupt() -> None:
    """Ctrl-C ends with 130."""
    with pytest.raises(click.exceptions.Exit) as caught, convert_errors({"debug": False}):
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130


def test_an_interrupt_says_nothing_of_the_requests_that_it_ends() -> None:
    """The user who presses Ctrl-C reads one word, and no advice for programs."""
    script = (
        "import contextlib, tinker\nfrom tinker.cli.output import convert_errors\nfrom "
        "tinker.testing import toy_server\n"
        "stack = contextlib.ExitStack()\nserver = stack.enter_context(toy_server())\n"
        "service = tinker.ServiceClient(base_url='http://toy', api_key='tml-key', "
        "transport=server.transport)\n"
        "training = service.create_lora_training_client('tinker/toy').result()\n"
        "server.hang_next('optim_step')\nstep = training.optim_step(tinker.AdamParams())\n"
        "with contextlib.suppress(RuntimeError), convert_errors({'debug': False}):\n    raise "
        "KeyboardInterrupt\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.startswith("Interrupted.\n")
    assert "may be lost" not in done.stderr


def test_a_closed_pipe_is_left_to_click() -> None:
    """A closed output pipe prints no error."""
    with pytest.raises(BrokenPipeError), convert_errors({"debug": False}):
        raise BrokenPipeError(32, "Broken pipe")


def test_an_unexpected_error(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected error is shown with its class; its traceback is shown with --debug only."""
    with (
        pytest.raises(CommandFailed, match="Unexpected error: ZeroDivisionError"),
        convert_errors({"debug": False}),
    ):
        raise ZeroDivisionError("x")
    assert "Traceback" not in capsys.readouterr().err
    with pytest.raises(CommandFailed), convert_errors({"debug": True}):
        raise ZeroDivisionError("x")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "-f json --base-url local://toy model list",
        "model -f json --base-url local://toy list",
        "model list -f json --base-url local://toy",
        "-f table --base-url local://none model list --format=json --base-url local://toy",
    ],
)
def test_options_of_tinker_anywhere(call: Call, command: str) -> None:
    """Global options can be given before and after the command; those after it win."""
    result = call(command)
    assert (result.exit_code, "tinker/toy" in result.stdout) == (0, True), result.stderr
    assert json.loads(result.stdout)


def test_a_failure_is_shown_as_the_options_after_the_command_say(call: Call) -> None:
    """--debug and -f json given after the command apply to failures, too."""
    result = call("run info none --debug -f json")
    assert (result.exit_code, "Traceback" in result.stderr) == (1, True)
    assert json.loads(result.stderr.splitlines()[-1])["type"] == "NotFoundError"


@pytest.mark.parametrize(
    ("shell", "file"), [("bash", ".bashrc"), ("fish", ".config/fish/completions/tinker.fish")]
)
def test_completion_is_installed_once(shell: str, file: str, call: Call, tmp_path: Path) -> None:
    """The line is printed, or appended to the startup file of the shell once."""
    line = call(f"completion {shell}").stdout.strip()
    (tmp_path / ".bashrc").write_text("alias t=tinker")
    for _ in range(2):
        assert call(f"completion {shell} --install").exit_code == 0
    assert (tmp_path / file).read_text().splitlines()[-1] == line
    assert (tmp_path / file).read_text().count(line) == 1
    assert call(f"completion {shell}").stdout.strip() == line


TITLES = {
    401: "Authentication failed",
    402: "Billing issue",
    403: "Permission denied",
    409: "Conflict",
    418: "API error (status 418)",
    429: "Rate limit exceeded",
    503: "Internal server error",
}


@pytest.mark.parametrize("status", TITLES)
def test_refusals(status: int, call: Call, scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every refusal exits with 1, a title and the message of the server; stdout stays empty."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-key")
    result = call("run info x", base_url=scripted("training_runs/x", status))
    assert (result.exit_code, result.stdout) == (1, "")
    said = f"Error: {TITLES[status]}\nDetails: scripted {status}\n"
    assert result.stderr.startswith(said)


@pytest.mark.parametrize("command", ["sample hi", "auth status", "run list"])
def test_a_server_that_needs_a_key(command: str, call: Call, serve: Any) -> None:
    """Without a key, a command says which variable to set; --debug shows what the server said."""
    url = serve(api_key="tml-right")
    needed = (
        "Error: The server requires an API key\nSet TINKER_API_KEY to the key of this server.\n"
    )
    assert (result := call(command, base_url=url)).exit_code == 1
    assert result.stderr.removeprefix("Fetching training runs\n") == needed
    assert "the request has no API key" in call(f"--debug {command}", base_url=url).stderr


FAULTS = [
    {"type": "missing", "loc": ["body", "model_id"], "msg": "Field required"},
    {"msg": "Value error"},
    {"type": "int_type", "loc": ["body", "data", 0, "rank"], "msg": "Input should be an integer"},
]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (
            400,
            {"detail": "'tyo' is not offered;\n did you mean 'toy'?"},
            "'tyo' is not offered; did you mean 'toy'?",
        ),
        (
            422,
            {"detail": FAULTS},
            (
                "body.model_id: Field required; Value error; body.data.0.rank: Input "
                "should be an integer"
            ),
        ),
        (400, {"error": {"message": "no such model"}}, "no such model"),
        (404, {"detail": "there is no run x"}, "there is no run x"),
        (400, {"message": "red \x1b[31m text"}, "red \\x1b[31m text"),
        (
            400,
            {"detail": [5]},
            "Invalid request\nDetails: Error code: 400 - {'detail': [5]} (get_training_run)",
        ),
        (
            422,
            ["a list"],
            "Invalid data provided\nDetails: Error code: 422 - ['a list'] (get_training_run)",
        ),
    ],
)
def test_the_message_of_a_refusal(
    status: int, body: object, said: str, call: Call, scripted: Any
) -> None:
    """The message of the server is the whole error, on one line, with escaped controls."""
    result = call("run info x", base_url=scripted("training_runs/x", status, body))
    assert (result.exit_code, result.stderr) == (1, f"Error: {said}\n")


def test_no_server(call: Call) -> None:
    """Without a server, the error has the cause once, the request, and advice at the end."""
    result = call("run list", base_url="http://127.0.0.1:9", code=1)
    assert result.stderr.splitlines()[1:] == [
        "Error: Could not connect to 127.0.0.1:9: Connection refused",
        "Request: POST http://127.0.0.1:9/api/v1/client/config",
        CONNECTION_ADVICE,
    ]


def test_retries_for_seconds_are_not_logged(tmp_path: Path) -> None:
    """The error of a busy server shows the cause once, with the number of attempts."""
    asked: list[str] = []

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        # longer than the command has patience
        later = {"retry-after": "1000"} if len(asked) > 1 else None
        await JSONResponse({"detail": "busy"}, 503, later)(scope, receive, send)

    with served(refuse) as url:
        words = ["-m", "tinker", "--base-url", url, "--patience", "30", "model", "list"]
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.count("busy") == 1, done.stderr
    assert "Gave up after 2 attempts in" in done.stderr
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        (
            "/wrong",
            (
                "The base URL is probably wrong: check its path, /wrong, in --base-url or "
                "TINKER_BASE_URL."
            ),
        ),
        (
            "",
            (
                "Either the base URL is wrong (--base-url or TINKER_BASE_URL), or this server does "
                "not support the operation"
            ),
        ),
    ],
)
def test_a_base_url_below_which_there_is_nothing(path: str, advice: str, call: Call) -> None:
    """If the server has no such path, the advice is to check the base URL."""
    with served(JSONResponse({"detail": "Not Found"}, 404)) as url:
        result = call("run list", base_url=url + path)
    assert (result.exit_code, advice in result.stderr.splitlines()[-1]) == (1, True), result.stderr


COLUMNS = (
    "Available: id, name, model, owner, lora, steps, loss, updated, status, checkpoint, "
    "checkpoint_time"
)


@pytest.mark.parametrize(
    ("command", "exit_code", "error", "kind", "more"),
    [
        ("run info x", 1, "no run x", "NotFoundError", {}),
        ("run lst", 2, "No such command 'lst'. Did you mean list?", "UsageError", {}),
        (
            "run list --limt 3",
            2,
            "No such option '--limt'. Did you mean --limit?",
            "UsageError",
            {},
        ),
        ("run list -c zzz", 1, "Unknown column: zzz", "CommandFailed", {"details": [COLUMNS]}),
    ],
)
def test_failures_in_json(
    command: str,
    exit_code: int,
    error: str,
    kind: str,
    more: dict[str, Any],
    call: Call,
    scripted: Any,
) -> None:
    """With -f json a failure is one object on the error stream, and nothing on the other."""
    url = scripted("training_runs/x", 404, {"detail": "no run x"})
    result = call(f"-f json {command}", base_url=url)
    said = {"error": error, "type": kind, **more}
    assert (result.exit_code, result.stdout, json.loads(result.stderr)) == (exit_code, "", said)


CONNECTION_ADVICE = (
    "Check the network, that the server runs, and its address: --base-url or TINKER_BASE_URL."
)


def test_the_advice_comes_last() -> None:
    """Notes on an error, such as the number of attempts, come before the advice."""
    request = httpx.Request("GET", "http://127.0.0.1:9/x")
    error = tinker.APIConnectionError(request)
    error.__cause__ = OSError("cannot connect")
    error.add_note("3 attempts in 2.0 s")
    failure = to_failure(error)
    assert failure.message == "Cannot connect"
    assert failure.details == (
        "Request: GET http://127.0.0.1:9/x",
        "3 attempts in 2.0 s",
        CONNECTION_ADVICE,
    )


SOAK = pytest.mark.soak  # of each command with each name
ABSENCE = "no connection to 127.0.0.1:9, and it is not in the cache"


def run_away(folder: Path, *words: str, hub: str = "http://127.0.0.1:9") -> tuple[int, str]:
    """Run Python with the hub of models elsewhere; the exit status and the error stream."""
    home = {"HF_ENDPOINT": hub, "HF_HOME": str(folder), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **home},
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "names",
    [("tyo", "some/model"), *(pytest.param((one,) * 2, marks=SOAK) for one in ("nothing", "tyo"))],
)
def test_a_local_server_of_an_unknown_model(names: tuple[str, str], tmp_path: Path) -> None:
    """A model that cannot be loaded is one line, at once, for commands, Python and `serve`."""
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    first, second = names
    script = (
        f"import tinker\nservice = tinker.ServiceClient(base_url='local://{second}')\n"
        "try: service.get_server_capabilities()\nexcept OSError as e: exit(f'Error: {e}')"
    )
    command = ("-m", "tinker.cli")
    for name, words, meant in (
        (first, (*command, "--base-url", f"local://{first}", "model", "list"), "local://toy"),
        (second, (*command, "--base-url", f"local://{second}", "sample", "hi"), "local://toy"),
        (first, (*command, "serve", "--model", first, "--port", "0"), "tinker/toy"),
        (second, ("-c", script), "local://toy"),
    ):
        is_similar = name == "tyo"
        reason = (
            f"; did you mean {meant}? ({ABSENCE})"
            if is_similar
            else f": {ABSENCE}; give a directory"
        )
        loading = f"Loading torch and {name} ...\n" if "serve" in words else ""
        said = f"{loading}Error: cannot load '{name}'{reason}\n"
        assert run_away(tmp_path, *words) == (1, said), words


def test_a_tokenizer_that_cannot_be_fetched(tmp_path: Path) -> None:
    """It is one line, at once, without the attempts that the hub's client repeats."""
    pytest.importorskip("transformers")
    words = "-m tinker.cli --base-url local://toy sample --tokenizer nosuch/tok hi"
    assert run_away(tmp_path, *words.split())[1] == (
        f"Sampling tinker/toy\nError: cannot load the tokenizer 'nosuch/tok': {ABSENCE}; give a "
        "directory\n"
    )


def test_a_local_server_of_a_model_that_the_hub_lacks(tmp_path: Path) -> None:
    """A name that the hub answers with 404 is said to be unknown there, or private."""
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    missing = JSONResponse({"error": "Repository not found"}, 404, {"x-error-code": "RepoNotFound"})
    with served(missing) as url:
        words = "-m tinker.cli --base-url local://nothing model list"
        _, told = run_away(tmp_path, *words.split(), hub=url)
    said = f"{url.removeprefix('http://')} has no such model, or it is private; give a directory"
    assert told == f"Error: cannot load 'nothing': {said}\n"
