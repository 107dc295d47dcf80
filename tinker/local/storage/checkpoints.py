"""Checkpoints on disk: one folder each, with the engine's files and a record. They outlive the
server.

Names from clients never become file names: a folder is named by a readable part and a hash. A
folder appears under its name complete or not at all, and what was acknowledged survives a killed
server and a power failure. What a killed server left half done is completed or undone by the next
one. Usable from several threads.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from tinker_wire import models

from tinker._shown import clean
from tinker.local.engines.protocol import EngineError
from tinker.local.storage.disk import Owner, sync_folder, sync_tree
from tinker.types.paths import SCHEME, ParsedCheckpointTinkerPath
from tinker_records import prepare

CheckpointKind: TypeAlias = Literal["weights", "sampler_weights", "external_weights"]
CHECKPOINT_KINDS: tuple[CheckpointKind, ...] = get_args(CheckpointKind)
MAX_NAME = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a checkpoint. Times are seconds since 1970.

    ``session_id``, ``project_id`` and ``run_metadata`` are those of the run when it was saved (or
    moved, or copied), and ``steps`` are the steps that it had taken.
    """

    path: str
    training_run_id: str
    kind: CheckpointKind
    name: str
    base_model: str
    engine_model: str
    lora_config: models.LoraConfig
    created_at: float
    optimizer: str = "adamw"
    steps: int = 0
    expires_at: float | None = None
    nbytes: int = 0
    public: bool = False
    user_metadata: models.Metadata | None = None
    session_id: str | None = None
    project_id: str | None = None
    run_metadata: models.Metadata | None = None

    @property
    def checkpoint_id(self) -> str:
        """Return its id within its run."""
        return f"{self.kind}/{self.name}"


def checkpoint_path(run: str, kind: CheckpointKind, name: str) -> str:
    """Return the path by which clients name a checkpoint."""
    return f"{SCHEME}{run}/{kind}/{name}"


def check_name(name: str) -> str:
    """Return the name. Raises EngineError for one that is not possible in a path."""
    if (
        not name.strip()
        or name in (".", "..")
        or len(name) > MAX_NAME
        or "/" in name
        or clean(name) != name
    ):
        shown = name if len(name) <= MAX_NAME else f"{name[:40]}..."
        rule = f"1 to {MAX_NAME} characters without '/' and control characters, and not '.' or '..'"
        raise EngineError(f"{shown!r} cannot name a checkpoint; a name has {rule}")
    return name


def name_conflict(path: str) -> str:
    """Return the error message for a name that is in use."""
    return (
        f"the checkpoint {path} exists; choose another name, or replace "
        "it with save_state(name, overwrite=True)"
    )


def folder_name(text: str) -> str:
    """Return a folder name that is safe on every file system and differs for every text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_UNSAFE.sub('_', text)[:64]}-{digest}"


def to_utc(seconds: float) -> datetime.datetime:
    """Return seconds since 1970 as a time in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


#: What is said of a checkpoint that is not of the one kind that a request takes.
OTHER_KINDS = {
    "weights": "from which training cannot continue; save_state makes one from which it can",
    "sampler_weights": "which cannot be sampled; save_weights_for_sampler makes one that can",
}
RECORD_FILE = "checkpoint.json"
# Folders that are not checkpoints: one that is being written, one that is being replaced, one that
# is being deleted.
DRAFT, OLD, GONE = LEFTOVERS = (".draft-", ".old-", ".gone-")


class Checkpoints:
    """The checkpoints below one folder, which this server shares with others. ``now`` is seconds
    since 1970.

    ``on_expiry`` is called after the removal of one that has expired.
    """

    def __init__(
        self,
        root: Path,
        now: Callable[[], float],
        owner: Owner,
        on_expiry: Callable[[CheckpointRecord], None],
    ) -> None:
        self._root, self._now, self._owner, self._on_expiry = root, now, owner, on_expiry
        self._lock = threading.Lock()  # for what replaces folders and records
        self.may_expire: bool = True
        self._recover()

    def exists(self, run: str, kind: CheckpointKind, name: str) -> bool:
        """Return whether a checkpoint of that name is there and has not expired; a damaged one is
        there.
        """
        try:
            return self._read(self._folder(run, kind, name)) is not None
        except EngineError:
            return True

    def get(self, run: str, kind: CheckpointKind, name: str) -> CheckpointRecord | None:
        """Return the record; None when there is none or it has expired. Raises EngineError for a
        damaged one.
        """
        return self._read(self._folder(run, kind, name))

    def find(self, path: str, *kinds: CheckpointKind) -> tuple[CheckpointRecord, Path]:
        """Return record and folder of ``tinker://<run>/<kind>/<name>``. Raises EngineError when
        unknown or of another kind.
        """
        try:
            parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
        except ValueError as error:
            raise EngineError(str(error)) from error
        found, _, name = parsed.checkpoint_id.partition("/")
        if found not in kinds:
            article = "an" if found == "external_weights" else "a"
            raise EngineError(
                f"{path} is {article} {parsed.checkpoint_type} checkpoint, {OTHER_KINDS[kinds[0]]}"
            )
        folder = self._folder(parsed.training_run_id, found, name)
        record = self._read(folder)
        if record is None:
            raise EngineError(f"there is no checkpoint {path} on this server")
        return record, folder

    def list(self, run: str | None = None) -> list[CheckpointRecord]:
        """Return those of one run, or all, the newest first, without damaged ones; expired ones are
        removed.
        """
        pattern = f"{'*' if run is None else folder_name(run)}/*/*/{RECORD_FILE}"
        records = (
            self._read_or_remove(file.parent)
            for file in self._root.glob(pattern)
            if _is_checkpoint(file.parent)
        )
        found = [record for record in records if record is not None]
        return sorted(found, key=lambda record: (record.created_at, record.path), reverse=True)

    def remove_expired(self) -> None:
        """Delete expired checkpoints, and record whether any of the others can expire."""
        self.may_expire = False
        if any(record.expires_at is not None for record in self.list()):
            self.may_expire = True

    def describe_last_save(self, run: str) -> str:
        """Return a hint for an error about an unknown run: where it was last saved; empty without a
        save.
        """
        saved = next((record for record in self.list(run) if record.kind == "weights"), None)
        return "" if saved is None else f"; its last save is {saved.path}"

    def folder(self, record: CheckpointRecord) -> Path:
        """Return the folder of a checkpoint's files."""
        return self._folder(record.training_run_id, record.kind, record.name)

    def files(self, record: CheckpointRecord) -> dict[str, Path]:
        """Return the engine's files by relative name."""
        folder = self.folder(record)
        found = {
            file.relative_to(folder).as_posix(): file
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        return {name: file for name, file in found.items() if name != RECORD_FILE}

    # Changes

    def write(
        self, record: CheckpointRecord, save: Callable[[Path], None], *, overwrite: bool
    ) -> CheckpointRecord:
        """Let ``save`` fill a folder and put it in place with its record. EngineError when the name
        is taken.
        """
        place = self.folder(record)
        if not overwrite and self._read(place) is not None:
            raise EngineError(name_conflict(record.path))
        with self._draft(place) as draft:
            save(draft)
            record = msgspec.structs.replace(record, nbytes=_nbytes(draft))
            (draft / RECORD_FILE).write_bytes(msgspec.json.encode(record))
            sync_tree(draft)
            self._replace(draft, place)
        self.may_expire |= record.expires_at is not None
        return record

    def copy(self, source: CheckpointRecord, record: CheckpointRecord) -> CheckpointRecord:
        """Make a checkpoint with the files of ``source``, which are shared on disk where the system
        can.
        """
        return self.write(
            record, lambda draft: _link_files(self.files(source), draft), overwrite=False
        )

    def update(self, record: CheckpointRecord, **changes: Any) -> CheckpointRecord:
        """Change the record of an existing checkpoint."""
        record = msgspec.structs.replace(record, **changes)
        self.may_expire |= record.expires_at is not None
        folder = self.folder(record)
        draft = folder / f".{RECORD_FILE}-{uuid.uuid4().hex}"
        with self._lock:
            draft.write_bytes(msgspec.json.encode(record))
            sync_tree(folder)
            os.replace(draft, folder / RECORD_FILE)
            sync_folder(folder)
        return record

    def delete(self, record: CheckpointRecord) -> None:
        """Delete a checkpoint."""
        self._remove(self.folder(record))

    def _remove(self, folder: Path) -> bool:
        """Move a folder out of the way before it is deleted, so that half of it is never seen;
        False when it was gone.
        """
        gone, found = self._temporary_path(folder, GONE), False
        with self._lock, contextlib.suppress(FileNotFoundError):
            os.replace(folder, gone)
            found = True
            sync_folder(folder.parent)
        shutil.rmtree(gone, ignore_errors=True)
        return found

    def _folder(self, run: str, kind: CheckpointKind, name: str) -> Path:
        return self._root / folder_name(run) / kind / folder_name(name)

    def _read_or_remove(self, folder: Path) -> CheckpointRecord | None:
        try:
            record = self._decode(folder)
        except EngineError:
            return None
        if record is not None and self._is_expired(record):
            if self._remove(folder):
                self._on_expiry(record)
            return None
        return record

    def _read(self, folder: Path) -> CheckpointRecord | None:
        record = self._decode(folder)
        return None if record is None or self._is_expired(record) else record

    def _is_expired(self, record: CheckpointRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= self._now()

    def _decode(self, folder: Path) -> CheckpointRecord | None:
        try:
            with self._lock:
                content = (folder / RECORD_FILE).read_bytes()
            return msgspec.json.decode(content, type=prepare(CheckpointRecord))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise EngineError(f"the checkpoint in {folder.name} is damaged: {error}") from error

    @contextlib.contextmanager
    def _draft(self, place: Path) -> Generator[Path]:
        """Make a temporary folder next to a checkpoint's; it is removed unless it
        is moved there.
        """
        draft = self._temporary_path(place, DRAFT)
        draft.mkdir(parents=True)
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _replace(self, draft: Path, place: Path) -> None:
        """Put the draft where an older checkpoint may be; that one is moved aside first and deleted
        last.
        """
        old = self._temporary_path(place, OLD)
        with self._lock:
            if place.exists():
                os.replace(place, old)
            try:
                os.replace(draft, place)
            except OSError:
                if old.exists():
                    os.replace(old, place)
                raise
            for folder in (place.parent, place.parent.parent, self._root):
                sync_folder(folder)
        shutil.rmtree(old, ignore_errors=True)

    # What killed servers left

    def _temporary_path(self, place: Path, prefix: str) -> Path:
        """Return a new name in the same folder, which contains the owner's tag."""
        return place.with_name(f"{prefix}{self._owner.claim()}-{uuid.uuid4().hex}")

    def _recover(self) -> None:
        """Restore checkpoints that were moved aside and not replaced, and remove leftovers."""
        for leftover in sorted(
            self._root.glob("*/*/.*-*"), key=lambda path: path.name, reverse=True
        ):
            prefix, _, rest = leftover.name.partition("-")
            if f"{prefix}-" in LEFTOVERS and self._owner.is_dead(rest.partition("-")[0]):
                self._clear(leftover)
        self._owner.forget_dead()

    def _clear(self, leftover: Path) -> None:
        place = self._original_folder(leftover)
        if place is not None and not place.exists():
            with contextlib.suppress(OSError):  # another server does the same
                os.replace(leftover, place)
                sync_folder(place.parent)
                return
        shutil.rmtree(leftover, ignore_errors=True)

    def _original_folder(self, leftover: Path) -> Path | None:
        """Return where a checkpoint was before it was moved aside to be replaced; None for
        everything else.
        """
        try:
            record = self._decode(leftover) if leftover.name.startswith(OLD) else None
        except EngineError:
            return None
        place = None if record is None else self.folder(record)
        return place if place is not None and place.parent == leftover.parent else None


def _is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is in place: not one that is being written or removed."""
    return not folder.name.startswith(".") and folder.parent.name in CHECKPOINT_KINDS


def _nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in _iterate_files(folder))


def _iterate_files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())


def _link_files(files: dict[str, Path], folder: Path) -> None:
    """Share files between two checkpoints; they are never written again."""
    for name, file in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except OSError:
            shutil.copyfile(file, place)
