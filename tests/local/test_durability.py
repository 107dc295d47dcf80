"""Checkpoints after a crash: a server killed at any step loses nothing that it acknowledged and
leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.server_parts import open_checkpoints
from tinker_wire import models

from tinker.local.storage import (
    FOLDER,
    LEFTOVERS,
    CheckpointRecord,
    Checkpoints,
    Owner,
    checkpoint_path,
)

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and locks")
KILLED = 9


def record(created_at: float) -> CheckpointRecord:
    return CheckpointRecord(
        path=checkpoint_path("run", "weights", "a"),
        training_run_id="run",
        kind="weights",
        name="a",
        base_model="m",
        engine_model="m",
        lora_config=models.LoraConfig(rank=1),
        created_at=created_at,
    )


def filler(content: str) -> Callable[[Path], None]:
    """Fill a folder with two files, one of them in a subfolder."""

    def fill(folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "weights").write_text(content)
        (folder / "deep" / "optimizer").write_text(content)

    return fill


def save(root: Path, content: str, created_at: float) -> None:
    open_checkpoints(root).write(record(created_at), filler(content), overwrite=True)


def content(checkpoints: Checkpoints) -> str | None:
    """Return the content of the only checkpoint, None without one; fail when it mixes old and new
    or is not listed once.
    """
    found = checkpoints.get("run", "weights", "a")
    assert checkpoints.list() == ([] if found is None else [found])
    if found is None:
        return None
    texts = {file.read_text() for file in checkpoints.files(found).values()}
    assert len(checkpoints.files(found)) == 2
    (text,) = texts
    assert text == {1.0: "old", 2.0: "new"}[found.created_at]
    return text


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(LEFTOVERS)]


def killed_at(step: int, root: Path, work: Callable[[], None]) -> bool:
    """Do the work in a child that dies at the given access to a file below the folder; return
    whether it got that far.
    """
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            touched = event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
            if touched and any(str(root) in str(argument) for argument in arguments):
                seen += 1
                if seen == step:
                    os._exit(KILLED)

        try:
            sys.addaudithook(watch)
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def deaths(
    tmp_path: Path, prepare: Callable[[Path], None], work: Callable[[Path], None]
) -> Iterator[Path]:
    """Return a folder for each step at which the work can be killed, after that kill."""
    for step in range(1, 1000):
        root = tmp_path / str(step)
        prepare(root)
        if not killed_at(step, root, lambda root=root: work(root)):  # type: ignore[misc]
            assert step > 5, "the work touches more files than that"
            return
        yield root


@posix
def test_a_kill_while_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    """Wherever the server dies, the next one finds the old or the new checkpoint, complete, and
    nothing else.
    """
    found: list[str | None] = []
    for root in deaths(
        tmp_path, lambda root: save(root, "old", 1.0), lambda root: save(root, "new", 2.0)
    ):
        found.append(content(open_checkpoints(root)))
        assert not leftovers(root)
    assert found == sorted(found, key=["old", "new"].index)
    assert set(found) == {"old", "new"}


@posix
def test_a_kill_while_a_first_checkpoint_is_saved(tmp_path: Path) -> None:
    """Wherever the server dies, the next one finds the checkpoint or none, and can save under its
    name.
    """
    found: list[str | None] = []
    for root in deaths(tmp_path, lambda root: root.mkdir(), lambda root: save(root, "new", 2.0)):
        found.append(content(open_checkpoints(root)))
        assert not leftovers(root)
        save(root, "old", 1.0)
        assert content(open_checkpoints(root)) == "old"
    assert set(found) <= {None, "new"}


@posix
def test_a_kill_while_a_checkpoint_is_deleted(tmp_path: Path) -> None:
    """Wherever the server dies, the checkpoint is complete or deleted."""

    def delete(root: Path) -> None:
        open_checkpoints(root).delete(record(1.0))

    found: list[str | None] = []
    for root in deaths(tmp_path, lambda root: save(root, "old", 1.0), delete):
        found.append(content(open_checkpoints(root)))
        assert not leftovers(root)
    assert set(found) == {"old", None}


@posix
def test_a_living_server_keeps_what_it_writes(tmp_path: Path) -> None:
    """A server that starts while another one saves in the same folder does not touch the other's
    files.
    """
    first = open_checkpoints(tmp_path)

    def fill(folder: Path) -> None:
        filler("new")(folder)
        open_checkpoints(tmp_path)
        assert leftovers(tmp_path) == [folder]

    first.write(record(2.0), fill, overwrite=False)
    assert content(first) == "new"


@posix
def test_owners_know_who_is_dead(tmp_path: Path) -> None:
    """A tag is alive from its claim to its release, in this process too; the files of the dead are
    removed.
    """
    one, other = Owner(tmp_path), Owner(tmp_path)
    assert other.is_dead(one.tag)
    assert not one.is_dead(one.claim())
    assert not other.is_dead(one.claim())
    (tmp_path / FOLDER / "somebody").touch()
    other.forget_dead()
    assert [file.name for file in (tmp_path / FOLDER).iterdir()] == [one.tag]
    one.release()
    assert other.is_dead(one.tag)
    assert not list((tmp_path / FOLDER).iterdir())


def test_a_replacement_that_cannot_be_put_in_place_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the new folder cannot be moved, the save fails and the old checkpoint is restored."""
    save(tmp_path, "old", 1.0)
    checkpoints = open_checkpoints(tmp_path)
    real = os.replace

    def refuse(source: Path, target: Path) -> None:
        if source.name.startswith(".draft-"):
            raise OSError("no room")
        real(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        checkpoints.write(record(2.0), filler("new"), overwrite=True)
    assert content(checkpoints) == "old"
    assert not leftovers(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_files_are_on_the_disk_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder of a checkpoint is synced before it is moved into place, and the move
    is synced after it.
    """
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def noted_replace(source: Path, target: Path) -> None:
        done.append("moved")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    open_checkpoints(tmp_path).write(record(1.0), filler("old"), overwrite=False)
    moved = done.index("moved")
    assert set(done[: moved - 1]) == {"weights", "optimizer", "deep", "checkpoint.json"}
    assert done[moved - 1].startswith(".draft-")
    assert done[moved + 1 :] == ["weights", done[moved + 2], tmp_path.name]
