"""Checkpoints on disk: one folder each, holding what the engine wrote and a record. They outlive the server.

Names from clients never become file names: a folder is named by a readable part and a hash. A folder appears under its
name complete or not at all, and what was acknowledged survives a killed server and a power failure. What a killed server
left half done is completed or undone by the next one. Usable from several threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from tinker_wire import models

from tinker.local.durable import sync_folder, sync_tree
from tinker.local.engines.protocol import EngineError
from tinker.local.owners import Owner
from tinker.types.paths import SCHEME, ParsedCheckpointTinkerPath
from tinker_records import prepare

Kind: TypeAlias = Literal["weights", "sampler_weights", "external_weights"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MADE_BY = {
    "weights": "save_weights",
    "sampler_weights": "save_weights_for_sampler",
    "external_weights": "save_weights_external",
}
RECORD_FILE = "checkpoint.json"
MAX_NAME = 255
# Folders that are no checkpoints: one that is being written, one that is being replaced, one that is being deleted.
DRAFT, OLD, GONE = LEFTOVERS = (".draft-", ".old-", ".gone-")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NOT_IN_NAMES = re.compile(r"[/\x00-\x1f\x7f]")


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a checkpoint besides its weights. Times are seconds since 1970.

    ``session_id``, ``project_id`` and ``run_metadata`` are those of the run when it was saved (or moved, or copied).
    """

    path: str
    training_run_id: str
    kind: Kind
    name: str
    base_model: str
    engine_model: str
    lora_config: models.LoraConfig
    created_at: float
    optimizer: str = "adamw"
    expires_at: float | None = None
    nbytes: int = 0
    public: bool = False
    user_metadata: models.Metadata | None = None
    session_id: str | None = None
    project_id: str | None = None
    run_metadata: models.Metadata | None = None

    @property
    def checkpoint_id(self) -> str:
        """What clients call it within its run."""
        return f"{self.kind}/{self.name}"


class Checkpoints:
    """The checkpoints below one folder, which this server shares with others. ``now`` is seconds since 1970."""

    def __init__(self, root: Path, now: Callable[[], float], owner: Owner | None = None) -> None:
        self._root, self._now = root, now
        self._owner = owner or Owner(root)
        self._lock = threading.Lock()  # for what replaces folders and records
        self._recover()

    def exists(self, run: str, kind: Kind, name: str) -> bool:
        """Whether a checkpoint of that name is there and has not expired; a damaged one is there."""
        try:
            return self._read(self._folder(run, kind, name)) is not None
        except EngineError:
            return True

    def get(self, run: str, kind: Kind, name: str) -> CheckpointRecord | None:
        """The record; None when there is none or it has expired. EngineError for a damaged one."""
        return self._read(self._folder(run, kind, name))

    def find(self, path: str, *kinds: Kind) -> tuple[CheckpointRecord, Path]:
        """The record and folder of ``tinker://<run>/<kind>/<name>``. EngineError when it is not here or of another kind."""
        try:
            parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
        except ValueError as error:
            raise EngineError(str(error)) from error
        found, _, name = parsed.checkpoint_id.partition("/")
        if found not in kinds:
            wanted = " or ".join(f"{kind!r} (made by {MADE_BY[kind]})" for kind in kinds)
            raise EngineError(f"{path} is a checkpoint of kind {found!r}; {wanted} is needed here")
        folder = self._folder(parsed.training_run_id, found, name)
        record = self._read(folder)
        if record is None:
            raise EngineError(f"there is no checkpoint {path} on this server")
        return record, folder

    def list(self, run: str | None = None) -> list[CheckpointRecord]:
        """Those of one run, or all, the newest first; damaged ones are left out, and expired ones removed."""
        pattern = f"{'*' if run is None else folder_name(run)}/*/*/{RECORD_FILE}"
        records = (self._listed(file.parent) for file in self._root.glob(pattern) if _is_checkpoint(file.parent))
        found = [record for record in records if record is not None]
        return sorted(found, key=lambda record: (record.created_at, record.path), reverse=True)

    def folder(self, record: CheckpointRecord) -> Path:
        """Where the files of a checkpoint are."""
        return self._folder(record.training_run_id, record.kind, record.name)

    def files(self, record: CheckpointRecord) -> dict[str, Path]:
        """What the engine wrote, by relative name."""
        folder = self.folder(record)
        found = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
        return {name: file for name, file in found.items() if name != RECORD_FILE}

    # Changes

    def write(self, record: CheckpointRecord, save: Callable[[Path], None], *, overwrite: bool) -> CheckpointRecord:
        """Let ``save`` fill a folder and put it in place with its record. EngineError when the name is taken."""
        place = self.folder(record)
        if not overwrite and self._read(place) is not None:
            raise EngineError(taken(record.path))
        with self._draft(place) as draft:
            save(draft)
            record = msgspec.structs.replace(record, nbytes=_nbytes(draft))
            (draft / RECORD_FILE).write_bytes(msgspec.json.encode(record))
            sync_tree(draft)
            self._replace(draft, place)
        return record

    def copy(self, source: CheckpointRecord, record: CheckpointRecord) -> CheckpointRecord:
        """A new checkpoint with the files of ``source``, which are shared on disk where that is possible."""
        return self.write(record, lambda draft: _link_files(self.files(source), draft), overwrite=False)

    def update(self, record: CheckpointRecord, **changes: Any) -> CheckpointRecord:
        """Change what is recorded about a checkpoint that is there."""
        record = msgspec.structs.replace(record, **changes)
        folder = self.folder(record)
        draft = folder / f".{RECORD_FILE}-{uuid.uuid4().hex}"
        with self._lock:
            draft.write_bytes(msgspec.json.encode(record))
            sync_tree(folder)
            os.replace(draft, folder / RECORD_FILE)
            sync_folder(folder)
        return record

    def delete(self, record: CheckpointRecord) -> None:
        """For good."""
        self._remove(self.folder(record))

    def _remove(self, folder: Path) -> None:
        """Out of the way first, so that nobody finds half of it."""
        gone = self._beside(folder, GONE)
        with self._lock, contextlib.suppress(FileNotFoundError):
            os.replace(folder, gone)
            sync_folder(folder.parent)
        shutil.rmtree(gone, ignore_errors=True)

    def _folder(self, run: str, kind: Kind, name: str) -> Path:
        return self._root / folder_name(run) / kind / folder_name(name)

    def _listed(self, folder: Path) -> CheckpointRecord | None:
        try:
            record = self._decoded(folder)
        except EngineError:
            return None
        if record is not None and self._is_over(record):
            self._remove(folder)
            return None
        return record

    def _read(self, folder: Path) -> CheckpointRecord | None:
        record = self._decoded(folder)
        return None if record is None or self._is_over(record) else record

    def _is_over(self, record: CheckpointRecord) -> bool:
        return record.expires_at is not None and record.expires_at <= self._now()

    def _decoded(self, folder: Path) -> CheckpointRecord | None:
        try:
            with self._lock:
                content = (folder / RECORD_FILE).read_bytes()
            return msgspec.json.decode(content, type=prepare(CheckpointRecord))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise EngineError(f"the checkpoint in {folder.name} is damaged: {error}") from error

    @contextmanager
    def _draft(self, place: Path) -> Generator[Path]:
        """A folder beside the place of a checkpoint, which goes unless it is moved there."""
        draft = self._beside(place, DRAFT)
        draft.mkdir(parents=True)
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _replace(self, draft: Path, place: Path) -> None:
        """Put the draft where an older checkpoint may be; that one is moved aside first and deleted last."""
        old = self._beside(place, OLD)
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

    def _beside(self, place: Path, prefix: str) -> Path:
        """A new name in the same folder, which says whose it is."""
        return place.with_name(f"{prefix}{self._owner.claim()}-{uuid.uuid4().hex}")

    def _recover(self) -> None:
        """Put back what was moved aside and not replaced, and remove what was left over."""
        for leftover in sorted(self._root.glob("*/*/.*-*"), key=lambda path: path.name, reverse=True):
            prefix, _, rest = leftover.name.partition("-")
            if f"{prefix}-" in LEFTOVERS and self._owner.is_dead(rest.partition("-")[0]):
                self._clear(leftover)
        self._owner.forget_dead()

    def _clear(self, leftover: Path) -> None:
        place = self._place_of(leftover)
        if place is not None and not place.exists():
            with contextlib.suppress(OSError):  # another server does the same
                os.replace(leftover, place)
                sync_folder(place.parent)
                return
        shutil.rmtree(leftover, ignore_errors=True)

    def _place_of(self, leftover: Path) -> Path | None:
        """Where a checkpoint was before it was moved aside to be replaced; None for everything else."""
        try:
            record = self._decoded(leftover) if leftover.name.startswith(OLD) else None
        except EngineError:
            return None
        place = None if record is None else self.folder(record)
        return place if place is not None and place.parent == leftover.parent else None


def checkpoint_path(run: str, kind: Kind, name: str) -> str:
    """What clients call a checkpoint."""
    return f"{SCHEME}{run}/{kind}/{name}"


def check_name(name: str) -> str:
    """The name itself; EngineError for one that could not stand in a path."""
    if not name.strip() or name in (".", "..") or len(name) > MAX_NAME or _NOT_IN_NAMES.search(name):
        shown = name if len(name) <= MAX_NAME else f"{name[:40]}..."
        rule = f"1 to {MAX_NAME} characters without '/' and control characters, and not '.' or '..'"
        raise EngineError(f"{shown!r} cannot name a checkpoint; a name has {rule}")
    return name


def taken(path: str) -> str:
    """What the user reads when a name is in use."""
    return f"the checkpoint {path} exists; choose another name, or pass overwrite where the call takes it"


def folder_name(text: str) -> str:
    """A name for a folder that is safe on every file system and differs for every text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_UNSAFE.sub('_', text)[:64]}-{digest}"


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder is in place: not one that is being written or removed."""
    return not folder.name.startswith(".") and folder.parent.name in KINDS


def _nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in _all_files(folder))


def _all_files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())


def _link_files(files: dict[str, Path], folder: Path) -> None:
    """Files of a checkpoint are never written again, so two checkpoints may share them."""
    for name, file in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, place)
        except OSError:
            shutil.copyfile(file, place)
