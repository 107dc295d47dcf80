"""What a command will need later is tried before it asks a server for anything; no line promises
what is not true.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tinker.local import Settings, State, close_in_process, create_app
from tinker.local.engines.toy import ToyEngine

pytest.importorskip("transformers")

Call = Callable[..., Result]
Ask = Callable[..., Any]
UNREACHABLE = "http://127.0.0.1:1"
WARNING = "could not continue this run."
RESUME = "run the same command with --resume"


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Return a file of six examples, a step for each."""
    (tmp_path / "x.jsonl").write_text('{"text": "abc", "prompt": "a"}\n' * 6)
    return "x.jsonl"


@pytest.fixture
def interrupted(serve_app: Any, tmp_path: Path) -> Callable[..., Any]:
    """Put a server on a port that calls a function and interrupts the command before its third
    step.
    """

    @contextmanager
    def start(disturb: Callable[[], object]) -> Generator[str]:
        state = State(ToyEngine, Settings(data_dir=tmp_path / "server", gap_seconds=0.2))
        app, seen = create_app(state), 0

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            nonlocal seen
            if scope["type"] == "http" and scope["path"].endswith("/optim_step"):
                seen += 1
                if seen == 3:
                    disturb()
                    os.kill(os.getpid(), signal.SIGINT)
            await app(scope, receive, send)

        with serve_app(answer) as url:
            yield url
        state.close()

    return start


def spoil(home: Path) -> None:
    """Put a file where the folder of the positions is or will be."""
    folder = home / ".tinker" / "train"
    folder.parent.mkdir(exist_ok=True)
    if folder.exists():
        folder.rmdir()
    folder.write_text("a file")


@pytest.mark.parametrize("option", [("--save-every", "2"), ("--resume",)])
def test_a_run_that_could_not_be_resumed(
    call: Call, ask: Ask, data: str, tmp_path: Path, option: tuple[str, ...]
) -> None:
    """With --save-every, a home folder that cannot be written is refused before a run is created,
    with the variable to set.
    """
    before = ask("run", "list", "--limit", "0")["runs"]
    spoil(tmp_path)
    result = call("train", data, "--batch-size", "1", *option)
    assert result.exit_code == 1
    assert RESUME not in result.stderr
    assert re.search(r"Error: .*\.tinker/train", result.stderr), result.stderr
    assert ask("run", "list", "--limit", "0")["runs"] == before
    if option != ("--resume",):
        assert f"--resume {WARNING}\nSet HOME to a folder that can be written.\n" in result.stderr


def test_a_run_that_need_not_be_resumed(call: Call, data: str, tmp_path: Path) -> None:
    """Without --save-every the run begins with one warning, and trains to its end."""
    spoil(tmp_path)
    result = call("train", data, "--batch-size", "1")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count(WARNING) == 1
    assert "Set HOME to a folder that can be written.\n" in result.stderr
    (tmp_path / ".tinker" / "train").unlink()
    assert WARNING not in call("train", data).stderr
    assert list((tmp_path / ".tinker" / "train").iterdir()) == []


def test_a_server_of_its_own_that_could_save_nothing(
    call: Call, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `local://`, whose checkpoints are in the home folder too, nothing is trained that could
    not be saved.
    """
    monkeypatch.delenv("TINKER_LOCAL_DIR", raising=False)
    (tmp_path / ".tinker").write_text("a file")
    try:
        result = call("train", data, base_url="local://toy")
    finally:
        close_in_process()
    assert (result.exit_code, "Training" in result.output) == (1, False), result.output
    assert "Set HOME to a folder that can be written.\n" in result.stderr


@pytest.mark.parametrize(
    ("option", "is_spoiled_before"), [((), True), ((), False), (("--save-every", "5"), False)]
)
def test_how_to_continue_is_true(
    call: Call,
    interrupted: Any,
    data: str,
    tmp_path: Path,
    is_spoiled_before: bool,
    option: tuple[str, ...],
) -> None:
    """A run that is interrupted, and whose position could not be kept, names the checkpoint to
    start from, which works.
    """
    if is_spoiled_before:
        spoil(tmp_path)
    with interrupted((lambda: None) if is_spoiled_before else (lambda: spoil(tmp_path))) as url:
        result = call("train", data, "--batch-size", "1", *option, base_url=url)
        assert result.exit_code == 130, result.output
        assert result.stderr.count(WARNING) == 1
        assert RESUME not in result.stderr
        found = re.search(r"To continue, use --from (\S+)\.\n", result.stderr)
        assert found is not None, result.stderr
        again = call("train", data, "--from", found[1], "--max-steps", "1", base_url=url)
        assert again.exit_code == 0, again.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "x.jsonl", "--log", "FILE.jsonl"],
        ["train", "x.jsonl", "--plot", "FILE.svg"],
        ["sample", "a", "--output", "FILE.json"],
        ["sample", "--file", "x.jsonl", "--out", "FILE.jsonl"],
        ["run", "compare", "log.jsonl", "--plot", "FILE.svg"],
        ["session", "export-trace", "nobody", "--output", "FILE"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("folder", ["nowhere", "x.jsonl", "/proc"])
def test_a_file_that_cannot_be_written(
    call: Call, data: str, tmp_path: Path, arguments: list[str], folder: str
) -> None:
    """A file that could not be created at the end is refused at the start, with its name."""
    if not Path(folder).is_dir() and folder.startswith("/"):
        pytest.skip(f"this system has no {folder}")
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 1}\n')
    given = [one.replace("FILE", f"{folder}/out") for one in arguments]
    result = call(*given, base_url=UNREACHABLE)
    assert result.exit_code == 1
    assert folder in result.stderr
    assert "Request" not in result.stderr
    assert "This is a bug" not in result.stderr


def test_trying_a_file_leaves_nothing(call: Call, data: str, tmp_path: Path) -> None:
    """A file is tried without a trace: none is left by a command that fails, what is there stays,
    and so does a link.
    """
    (tmp_path / "kept.svg").write_text("kept")
    (tmp_path / "link.svg").symlink_to("later.svg")
    before = sorted(one.name for one in tmp_path.iterdir())
    for name in ("new.svg", "kept.svg", "link.svg"):
        assert call("train", data, "--plot", name, base_url=UNREACHABLE).exit_code == 1
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != ".tinker") == before
    assert (tmp_path / "kept.svg").read_text() == "kept"
    assert (tmp_path / "link.svg").is_symlink()


ASYNC = """
import asyncio
loops = set()
{definition}
    loops.add(asyncio.get_running_loop())
    await asyncio.sleep(0)
    assert len(loops) == 1
    return {result}
"""
GRPO = ("--grpo", "reward.py", "--group-size", "2", "--max-tokens", "2", "--batch-size", "3")
FUNCTION = "async def reward(answer, example):"
METHOD = "class Judge:\n  async def __call__(self, answer, example):"


@pytest.mark.parametrize("definition", [FUNCTION, METHOD], ids=["function", "method"])
def test_rewards_that_are_async(ask: Ask, data: str, tmp_path: Path, definition: str) -> None:
    """A reward may be a coroutine function: it is awaited, always in the same event loop."""
    code = ASYNC.format(definition=definition, result="2.5")
    (tmp_path / "reward.py").write_text(
        code + ("reward = Judge()\n" if definition == METHOD else "")
    )
    assert ask("train", data, *GRPO)["rewards"] == [2.5, 2.5]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("1 / 0", "reward.py:8: ZeroDivisionError: division by zero"),
        ("None", "reward.py:4: reward must return a number, got None"),
        ("float('inf')", "reward.py:4: reward must return a finite number, got inf"),
    ],
)
def test_async_rewards_that_fail(
    call: Call, data: str, tmp_path: Path, result: str, words: str
) -> None:
    """What a coroutine raises or returns is judged as that of a function, with file and line."""
    (tmp_path / "reward.py").write_text(ASYNC.format(definition=FUNCTION, result=result))
    told = call("train", data, *GRPO)
    assert (told.exit_code, words in told.stderr) == (1, True), told.stderr
    assert "never awaited" not in told.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "async def reward(answer):\n    return 1.0",
            "reward(answer) cannot be called as reward(answer, example)",
        ),
        ("def reward(answer, example):\n    yield 1.0", "reward is a generator"),
        ("async def reward(answer, example):\n    yield 1.0", "reward is a generator"),
    ],
)
def test_rewards_that_cannot_be_called(
    call: Call, data: str, tmp_path: Path, code: str, words: str
) -> None:
    """A function that is neither a function nor a coroutine function is refused before anything is
    asked for.
    """
    (tmp_path / "reward.py").write_text(code)
    result = call("train", data, *GRPO, base_url=UNREACHABLE)
    assert (result.exit_code, words in result.stderr) == (1, True), result.stderr
    assert "Request" not in result.stderr
