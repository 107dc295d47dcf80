"""How commands look: on terminals of 80 and 140 columns, and into a pipe."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyte
import pytest
from cli.conftest import Call, served, write
from click.testing import CliRunner
from support.commands import list_commands
from support.terminals import show_on_terminal

from tinker.cli import main

pty = pytest.importorskip("pty")

ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>])")


def read_only(run: Any) -> list[list[str]]:
    """Return a call of every command that changes nothing and needs no account."""
    return [
        ["version"],
        ["auth", "status"],
        ["model", "list"],
        ["run", "list"],
        [
            "run",
            "list",
            "--columns",
            "id,model,owner,lora,updated,status,checkpoint,checkpoint_time",
        ],
        ["run", "info", run.run_id],
        ["run", "usage", run.run_id],
        ["run", "watch", "log.jsonl", "--once"],
        ["run", "compare", "log.jsonl", "log.jsonl"],
        ["checkpoint", "list"],
        ["checkpoint", "list", "--run-id", run.run_id],
        ["checkpoint", "info", run.training],
        ["completion", "bash"],
        ["doctor"],
        ["sample", "--model", run.sampler, "abc", "--max-tokens", "2"],
        ["run", "info", "nobody:train:0"],
        ["checkpoint", "info", "tinker://nobody/weights/x"],
        ["trian"],
        ["run", "list", "--limt", "3"],
    ]


@pytest.fixture
def calls(run: Any, server: str, tmp_path: Path) -> list[list[str]]:
    """These calls, against the server."""
    lines = [
        {"step": at, "loss": 3.0 / at, "tokens_per_second": 1234.5678901} for at in range(1, 9)
    ]
    write(tmp_path / "log.jsonl", *lines)
    return [["--base-url", server, "--patience", "0", *one] for one in read_only(run)]


def show_screen(call: list[str], folder: Path) -> list[str]:
    """Return the lines that a command leaves on a terminal of 100 columns."""
    screen = pyte.Screen(100, 500)
    screen.set_mode(pyte.modes.LNM)
    pyte.Stream(screen).feed(show_on_terminal([call], 100, folder))
    return [line.rstrip() for line in screen.display if line.strip()]


def test_messages_stand_apart_from_the_progress_bar(server: str, tmp_path: Path) -> None:
    """What is reported during a training has lines of its own, and no bar is left on the screen."""
    examples = [{"prompt": f"{at} + 1 =", "completion": f" {at + 1}"} for at in range(8)]
    write(tmp_path / "data.jsonl", *examples)
    train = (
        "train data.jsonl --epochs 3 --batch-size 4 --save-every 3 --eval-file data.jsonl "
        "--eval-every 2"
    )
    command = f"--base-url {server} --patience 0 {train}"
    lines = show_screen(command.split(), tmp_path)
    assert any(
        re.match(r"\W*Evaluation loss\W+[0-9.]+ -> [0-9.]+ \(best [0-9.]+ after step \d\)", line)
        for line in lines
    ), lines
    reported = [line for line in lines if re.search(r"evaluation loss|saved tinker:", line)]
    assert len(reported) >= 4, lines
    assert [line for line in reported if not re.match(r"step \d+/6 ", line)] == []
    assert [line for line in lines if re.search(r"\d/6 +[-0-9]:", line)] == []


def test_the_result_of_a_file_of_prompts_stands_apart_from_the_progress_bar(
    run: Any, server: str, tmp_path: Path
) -> None:
    """The sentence about the answers has a line of its own, and no bar is left on the screen."""
    write(tmp_path / "prompts.jsonl", *({"prompt": [1, 2, at]} for at in range(3)))
    sample = f"sample --model {run.sampler} --file prompts.jsonl -o answers.jsonl --max-tokens 2"
    command = f"--base-url {server} --patience 0 {sample}"
    lines = show_screen(command.split(), tmp_path)
    assert "3 answers in answers.jsonl, 3 of them new" in lines
    assert [line for line in lines if "━" in line] == []


def test_ctrl_c_at_the_prompt_keeps_a_conversation(run: Any, server: str, tmp_path: Path) -> None:
    """Ctrl-C clears the line that is typed and says how to end; the conversation goes on."""
    pytest.importorskip("transformers")
    typed = [("> ", "hal\x03"), ("Ctrl-D quits", ""), ("> ", "/quit\n")]
    shown = show_on_terminal(
        [["--base-url", server, "chat", "--model", run.sampler]], 80, tmp_path, typed
    )
    assert "Ctrl-D quits" in shown
    assert "ended with 0" in shown


@pytest.mark.parametrize("columns", [80, 140])
def test_no_line_is_wider_than_the_terminal(
    calls: list[list[str]], columns: int, tmp_path: Path
) -> None:
    """Tables, charts, progress and properties fit; only sentences are left to be wrapped."""
    shown = ESCAPES.sub("", show_on_terminal(calls, columns, tmp_path))
    assert shown.count("ended with") == len(calls)
    assert "Traceback" not in shown
    drawn = [line for line in re.split(r"[\r\n]+", shown) if re.search(r"[│┃━─┏└]| \|", line)]
    assert drawn
    assert [line for line in drawn if len(line) > columns] == []


def test_short_cells_are_not_broken(calls: list[list[str]], tmp_path: Path) -> None:
    """Sizes and times are not wrapped if the terminal has room."""
    listing = next(one for one in calls if one[-2] == "--run-id")
    shown = ESCAPES.sub("", show_on_terminal([listing], 140, tmp_path))
    assert re.search(r"\d KB +just now", shown), shown


def test_a_live_curve_is_drawn_in_dots(calls: list[list[str]], tmp_path: Path) -> None:
    """A terminal that shows every letter gets a curve in dots, as of a run that is trained."""
    (watch,) = (one for one in calls if "watch" in one)
    shown = show_on_terminal([watch], 80, tmp_path)
    assert re.search("[\u2800-\u28ff]", shown)
    assert " |*" not in shown


def test_help_fits() -> None:
    """No line of any help is wider than a terminal of 80 or 140 columns, examples included."""
    wide = [
        (columns, *path, line)
        for columns in (80, 140)
        for path, _ in list_commands(main)
        for line in CliRunner()
        .invoke(main, [*path, "--help"], terminal_width=columns)
        .stdout.splitlines()
        if len(line) > columns
    ]
    assert wide == []


def test_pipes_get_plain_text(calls: list[list[str]], call: Call) -> None:
    """Into a pipe there are no escapes, lines of tables or blanks at ends; streams are apart."""
    pytest.importorskip("transformers")
    for arguments in calls:
        result = call(*arguments[4:])
        assert not re.search(r"\x1b|[│┃━┏]", result.output), arguments
        blanks = [line for line in result.stdout.splitlines() if line != line.rstrip()]
        # what a model samples may end with a blank
        assert not blanks or "sample" in arguments, arguments
        assert (result.exit_code == 0) == (not result.stderr.startswith(("Error", "Usage"))), (
            arguments,
            result.output,
        )


def test_another_web_server(call: Call) -> None:
    """One sentence says that the URL is no Tinker server, or what to remove from it."""
    from starlette.responses import HTMLResponse

    with served(HTMLResponse("<!doctype html><html></html>", 404)) as url:
        result = call("run list", base_url=url)
    assert result.exit_code == 1
    error = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert result.stderr.splitlines()[-1] == error[0]
    assert f"GET {url}/api/v1/training_runs" in error[0]
    assert "so there is no Tinker API; check base_url (TINKER_BASE_URL)" in error[0]
    with served(HTMLResponse("<!doctype html><html></html>", 404)) as url:
        assert (
            "; remove /v1 from base_url (TINKER_BASE_URL)"
            in call("run list", base_url=f"{url}/v1").stderr
        )
