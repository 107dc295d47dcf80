"""What a command will need later is tried first, and no line promises what is not true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import UNREACHABLE, Ask, Call, interrupt

from tinker.local import close_in_process

pytest.importorskip("transformers")

WARNING = "could not continue this run."
RESUME = "run the same command with --resume"


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Return a file of six examples, a step for each."""
    (tmp_path / "x.jsonl").write_text('{"text": "abc", "prompt": "a"}\n' * 6)
    return "x.jsonl"


def spoil(home: Path) -> None:
    """Put a file where the folder of the positions is or will be."""
    folder = home / ".tinker" / "train"
    folder.parent.mkdir(exist_ok=True)
    if folder.exists():
        folder.rmdir()
    folder.write_text("a file")


@pytest.mark.parametrize("option", ["--save-every 2", "--resume"])
def test_a_run_that_could_not_be_resumed(
    call: Call, ask: Ask, data: str, tmp_path: Path, option: str
) -> None:
    """With --save-every, a home folder that cannot be written is refused before there is a run."""
    before = ask("run list --limit 0")["runs"]
    spoil(tmp_path)
    result = call(f"train {data} --batch-size 1 {option}", code=1)
    assert RESUME not in result.stderr
    assert re.search(r"Error: .*\.tinker/train", result.stderr), result.stderr
    assert ask("run list --limit 0")["runs"] == before
    if option != "--resume":
        said = f"--resume {WARNING}\nSet HOME to a folder that can be written.\n"
        assert said in result.stderr


def test_a_run_that_need_not_be_resumed(call: Call, data: str, tmp_path: Path) -> None:
    """Without --save-every the run begins with one warning, and trains to its end."""
    spoil(tmp_path)
    result = call(f"train {data} --batch-size 1", code=0)
    assert result.stderr.count(WARNING) == 1
    assert "Set HOME to a folder that can be written.\n" in result.stderr
    (tmp_path / ".tinker" / "train").unlink()
    assert WARNING not in call(f"train {data}").stderr
    assert list((tmp_path / ".tinker" / "train").iterdir()) == []


def test_a_server_of_its_own_that_could_save_nothing(
    call: Call, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `local://`, in the home folder too, nothing is trained that could not be saved."""
    monkeypatch.delenv("TINKER_LOCAL_DIR", raising=False)
    (tmp_path / ".tinker").write_text("a file")
    try:
        result = call(f"train {data}", base_url="local://toy")
    finally:
        close_in_process()
    assert (result.exit_code, "Training" in result.output) == (1, False), result.output
    assert "Set HOME to a folder that can be written.\n" in result.stderr


@pytest.mark.parametrize(
    ("option", "is_spoiled_before"), [("", True), ("", False), ("--save-every 5", False)]
)
def test_how_to_continue_is_true(
    call: Call, disturbed: Any, data: str, tmp_path: Path, is_spoiled_before: bool, option: str
) -> None:
    """An interrupted run whose position was not kept names the checkpoint to start from, which works."""
    if is_spoiled_before:
        spoil(tmp_path)

    def disturb() -> None:
        if not is_spoiled_before:
            spoil(tmp_path)
        interrupt()

    url = disturbed("/optim_step", 3, disturb)
    result = call(f"train {data} --batch-size 1 {option}", base_url=url, code=130)
    assert result.stderr.count(WARNING) == 1
    assert RESUME not in result.stderr
    found = re.search(r"To continue, use --from (\S+)\.\n", result.stderr)
    assert found is not None, result.stderr
    call(f"train {data} --from {found[1]} --max-steps 1", base_url=url, code=0)


@pytest.mark.parametrize(
    "command",
    [
        "train x.jsonl --log FILE.jsonl",
        "train x.jsonl --plot FILE.svg",
        "sample a --output FILE.json",
        "sample --file x.jsonl --out FILE.jsonl",
        "run compare log.jsonl --plot FILE.svg",
        "session export-trace nobody --output FILE",
    ],
)
@pytest.mark.parametrize("folder", ["nowhere", "x.jsonl", "/proc"])
def test_a_file_that_cannot_be_written(
    refuse: Any, data: str, tmp_path: Path, command: str, folder: str
) -> None:
    """A file that could not be created at the end is refused at the start, with its name."""
    if not Path(folder).is_dir() and folder.startswith("/"):
        pytest.skip(f"this system has no {folder}")
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 1}\n')
    assert "Request" not in refuse(1, folder, command.replace("FILE", f"{folder}/out"))


def test_trying_a_file_leaves_nothing(call: Call, data: str, tmp_path: Path) -> None:
    """A file is tried without a trace: nothing is made, what is there stays, and so does a link."""
    (tmp_path / "kept.svg").write_text("kept")
    (tmp_path / "link.svg").symlink_to("later.svg")
    before = sorted(one.name for one in tmp_path.iterdir())
    for name in ("new.svg", "kept.svg", "link.svg"):
        assert call(f"train {data} --plot {name}", base_url=UNREACHABLE).exit_code == 1
    assert sorted(one.name for one in tmp_path.iterdir() if one.name != ".tinker") == before
    assert (tmp_path / "kept.svg").read_text() == "kept"
    assert (tmp_path / "link.svg").is_symlink()
