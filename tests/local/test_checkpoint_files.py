"""The folders of checkpoints: copies with and without shared files, expiry, sizes, names already in
use; and after a crash: a server killed at any step loses nothing that it acknowledged and leaves
nothing behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.server_parts import open_checkpoints
from tinker_wire import models

from tinker.local.engines.protocol import EngineError
from tinker.local.storage import (
    FOLDER,
    LEFTOVERS,
    RECORD_FILE,
    CheckpointRecord,
    Checkpoints,
    Owner,
    check_name,
    checkpoint_path,
    folder_name,
)


def record(name: str, run: str = "run", created_at: float = 1.0, **fields: Any) -> CheckpointRecord:
    return CheckpointRecord(
        path=checkpoint_path(run, "weights", name),
        training_run_id=run,
        kind="weights",
        name=name,
        base_model="m",
        engine_model="m",
        lora_config=models.LoraConfig(rank=1),
        created_at=created_at,
        **fields,
    )


def filler(weights: str, optimizer: str) -> Callable[[Path], None]:
    """Fill a folder with two files, one of them in a subfolder."""

    def fill(folder: Path) -> None:
        (folder / "deep").mkdir()
        (folder / "weights").write_text(weights)
        (folder / "deep" / "optimizer").write_text(optimizer)

    return fill


fill = filler("123", "45")


@pytest.fixture
def now() -> list[float]:
    """Return the time as the server sees it."""
    return [100.0]


@pytest.fixture
def checkpoints(tmp_path: Path, now: list[float]) -> Checkpoints:
    """Return a folder of checkpoints."""
    return open_checkpoints(tmp_path / "checkpoints", lambda: now[0])


def no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "no links on this disk")


@pytest.mark.parametrize("links", [True, False])
def test_a_copy_has_the_same_files(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """A copy holds what its source holds, sharing the disk where that works, and outlives its
    source.
    """
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    source = checkpoints.write(record("a"), fill, overwrite=False)
    copied = checkpoints.copy(source, record("b", run="other"))
    assert copied.nbytes == source.nbytes == 5
    shared = [os.stat(file).st_nlink for file in checkpoints.files(copied).values()]
    assert shared == ([2, 2] if links else [1, 1])
    checkpoints.delete(source)
    assert {name: file.read_text() for name, file in checkpoints.files(copied).items()} == {
        "deep/optimizer": "45",
        "weights": "123",
    }
    assert checkpoints.list() == [copied]


def test_a_name_that_is_taken(checkpoints: Checkpoints) -> None:
    """A second save under a name is refused before anything is written, unless it may replace the
    first.
    """
    kept = checkpoints.write(record("a"), fill, overwrite=False)
    called: list[Path] = []
    with pytest.raises(EngineError, match="exists; choose another name"):
        checkpoints.write(record("a", created_at=2.0), called.append, overwrite=False)
    assert called == []
    newer = checkpoints.write(record("a", created_at=2.0), fill, overwrite=True)
    assert checkpoints.get("run", "weights", "a") == newer != kept


def test_a_checkpoint_ends_at_its_time(checkpoints: Checkpoints, now: list[float]) -> None:
    """A checkpoint is gone at the second at which it expires: its name is free, and listing removes
    its files.
    """
    kept = checkpoints.write(record("a", expires_at=110.0), fill, overwrite=False)
    now[0] = 109.9
    assert checkpoints.exists("run", "weights", "a")
    assert checkpoints.list() == [kept]
    now[0] = 110.0
    assert not checkpoints.exists("run", "weights", "a")
    assert checkpoints.get("run", "weights", "a") is None
    with pytest.raises(EngineError, match="there is no checkpoint"):
        checkpoints.find(kept.path, "weights")
    folder = checkpoints.folder(kept)
    assert folder.exists()
    assert checkpoints.list() == []
    assert not folder.exists()
    assert checkpoints.write(record("a"), fill, overwrite=False).expires_at is None


def test_lists_are_of_one_run_or_all_and_begin_with_the_newest(checkpoints: Checkpoints) -> None:
    """The newest comes first; among equals the path decides."""
    for name, run, at in (
        ("a", "one", 1.0),
        ("b", "one", 3.0),
        ("c", "two", 2.0),
        ("d", "two", 2.0),
    ):
        checkpoints.write(record(name, run, at), fill, overwrite=False)
    assert [one.name for one in checkpoints.list()] == ["b", "d", "c", "a"]
    assert [one.name for one in checkpoints.list("two")] == ["d", "c"]
    assert checkpoints.list("three") == []


def test_a_damaged_record(checkpoints: Checkpoints) -> None:
    """A damaged checkpoint is in no list, keeps its name in use, and raises an error that says it
    is damaged.
    """
    kept = checkpoints.write(record("a"), fill, overwrite=False)
    (checkpoints.folder(kept) / RECORD_FILE).write_bytes(b"{")
    assert checkpoints.list() == []
    assert checkpoints.exists("run", "weights", "a")
    with pytest.raises(EngineError, match="is damaged"):
        checkpoints.get("run", "weights", "a")


def test_records_can_be_changed(checkpoints: Checkpoints) -> None:
    """A change is visible to every reader, changes nothing else, and leaves no file behind."""
    kept = checkpoints.write(record("a"), fill, overwrite=False)
    changed = checkpoints.update(kept, public=True, expires_at=200.0)
    assert (
        checkpoints.get("run", "weights", "a")
        == changed
        == msgspec.structs.replace(kept, public=True, expires_at=200.0)
    )
    assert sorted(file.name for file in checkpoints.folder(kept).iterdir()) == [
        RECORD_FILE,
        "deep",
        "weights",
    ]


@pytest.mark.parametrize(
    ("path", "kinds", "words"),
    [
        ("tinker://run/weights/b", ("weights",), "there is no checkpoint"),
        (
            "tinker://run/weights/a",
            ("sampler_weights",),
            "is a training checkpoint, which cannot be sampled; save_weights_for_sampler makes one",
        ),
        ("nonsense", ("weights",), "nonsense|tinker://"),
    ],
)
def test_what_is_not_found_says_why(
    checkpoints: Checkpoints, path: str, kinds: Any, words: str
) -> None:
    """The error for a checkpoint that is not found says why: an unknown path, another kind, or not
    a path.
    """
    checkpoints.write(record("a"), fill, overwrite=False)
    with pytest.raises(EngineError, match=words):
        checkpoints.find(path, *kinds)
    found, folder = checkpoints.find("tinker://run/weights/a", "sampler_weights", "weights")
    assert (found.name, (folder / "weights").read_text()) == ("a", "123")


def test_a_save_that_fails_leaves_nothing(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """A failed save leaves no half-written checkpoint or draft, and keeps the previous checkpoint
    unchanged.
    """
    kept = checkpoints.write(record("a"), fill, overwrite=False)

    def fail(folder: Path) -> None:
        fill(folder)
        raise RuntimeError("the disk is on fire")

    with pytest.raises(RuntimeError):
        checkpoints.write(record("a", created_at=2.0), fail, overwrite=True)
    assert checkpoints.get("run", "weights", "a") == kept
    assert [
        file.parent.name for file in (tmp_path / "checkpoints").rglob("weights") if file.is_file()
    ] == [folder_name("a")]


@pytest.mark.parametrize("name", ["a", "a" * 255, "über alles", "a.b", "..."])
def test_names_that_can_be_saved(checkpoints: Checkpoints, name: str) -> None:
    """Any name of up to 255 characters gets a separate folder."""
    assert check_name(name) == name
    checkpoints.write(record(name), fill, overwrite=False)
    assert [one.name for one in checkpoints.list()] == [name]


@pytest.mark.parametrize("name", ["", " ", ".", "..", "a/b", "a\n", "a" * 256])
def test_names_that_cannot(name: str) -> None:
    """A name that cannot be part of a path is refused, and the error quotes no more of it than fits
    in a line.
    """
    with pytest.raises(EngineError, match="cannot name a checkpoint") as caught:
        check_name(name)
    assert len(str(caught.value)) < 250


def test_folders_differ_where_names_do() -> None:
    """Names that look alike on a disk get separate folders, with names short enough for every file
    system.
    """
    names = ["a", "A", "a b", "a_b", "a/b", "ä", "x" * 300, "x" * 301]
    assert len({folder_name(name).lower() for name in names}) == len(names)
    assert all(len(folder_name(name)) <= 81 for name in names)


def test_a_record_before_it_is_written() -> None:
    """A record has no size until its files are there, cannot be changed, and is found by kind and
    name.
    """
    one = record("a")
    assert (one.nbytes, one.checkpoint_id) == (0, "weights/a")
    with pytest.raises(AttributeError):
        one.name = "b"  # type: ignore[misc]
    with pytest.raises(TypeError):
        CheckpointRecord(*msgspec.structs.astuple(one))  # fields are given by name


def test_folders_that_are_no_checkpoints_are_not_listed(checkpoints: Checkpoints) -> None:
    """Only complete checkpoints in the folder of a known kind are listed."""
    kept = checkpoints.write(record("a"), fill, overwrite=False)
    place = checkpoints.folder(kept)
    for other in (place.with_name(".draft-x"), place.parent.with_name("unknown_kind") / place.name):
        shutil.copytree(place, other)
    assert [one.path for one in checkpoints.list()] == [kept.path]


def test_copies_of_files_that_share_a_folder(checkpoints: Checkpoints) -> None:
    """A copy of a checkpoint includes both of two files in one subfolder."""

    def fill_deep(folder: Path) -> None:
        fill(folder)
        (folder / "deep" / "second").write_text("67")
        (folder / "other" / "deeper").mkdir(parents=True)
        (folder / "other" / "deeper" / "third").write_text("8")

    source = checkpoints.write(record("a"), fill_deep, overwrite=False)
    copy = checkpoints.copy(source, record("b"))
    assert checkpoints.files(copy).keys() == checkpoints.files(source).keys()


# After a crash


posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and locks")
KILLED = 9


def save(root: Path, content: str, created_at: float) -> None:
    open_checkpoints(root).write(
        record("a", created_at=created_at), filler(content, content), overwrite=True
    )


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
) -> Iterator[tuple[Path, str | None]]:
    """Yield the folder after each kill of the work, one for each of its steps, and the content that
    the next server finds, which is to leave nothing else there.
    """
    for step in range(1, 1000):
        root = tmp_path / str(step)
        prepare(root)
        if not killed_at(step, root, lambda root=root: work(root)):  # type: ignore[misc]
            assert step > 5, "the work touches more files than that"
            return
        found = content(open_checkpoints(root))
        assert not leftovers(root)
        yield root, found


@posix
def test_a_kill_while_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    """Wherever the server dies, the next one finds the old or the new checkpoint, complete, and
    nothing else.
    """
    kills = deaths(
        tmp_path, lambda root: save(root, "old", 1.0), lambda root: save(root, "new", 2.0)
    )
    found = [text for _, text in kills]
    assert found == sorted(found, key=["old", "new"].index)
    assert set(found) == {"old", "new"}


@posix
def test_a_kill_while_a_first_checkpoint_is_saved(tmp_path: Path) -> None:
    """Wherever the server dies, the next one finds the checkpoint or none, and can save under its
    name.
    """
    for root, found in deaths(
        tmp_path, lambda root: root.mkdir(), lambda root: save(root, "new", 2.0)
    ):
        assert found in (None, "new")
        save(root, "old", 1.0)
        assert content(open_checkpoints(root)) == "old"


@posix
def test_a_kill_while_a_checkpoint_is_deleted(tmp_path: Path) -> None:
    """Wherever the server dies, the checkpoint is complete or deleted."""

    def delete(root: Path) -> None:
        open_checkpoints(root).delete(record("a", created_at=1.0))

    found = {text for _, text in deaths(tmp_path, lambda root: save(root, "old", 1.0), delete)}
    assert found == {"old", None}


@posix
def test_a_living_server_keeps_what_it_writes(tmp_path: Path) -> None:
    """A server that starts while another one saves in the same folder does not touch the other's
    files.
    """
    first = open_checkpoints(tmp_path)

    def fill(folder: Path) -> None:
        filler("new", "new")(folder)
        open_checkpoints(tmp_path)
        assert leftovers(tmp_path) == [folder]

    first.write(record("a", created_at=2.0), fill, overwrite=False)
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
        checkpoints.write(record("a", created_at=2.0), filler("new", "new"), overwrite=True)
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
    open_checkpoints(tmp_path).write(
        record("a", created_at=1.0), filler("old", "old"), overwrite=False
    )
    moved = done.index("moved")
    assert set(done[: moved - 1]) == {"weights", "optimizer", "deep", "checkpoint.json"}
    assert done[moved - 1].startswith(".draft-")
    assert done[moved + 1 :] == ["weights", done[moved + 2], tmp_path.name]
