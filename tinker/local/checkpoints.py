"""Checkpoints on disk: one folder each, holding what the engine wrote and a record. They outlive the server.

Names from clients never become file names: a folder is named by a readable part and a hash. A folder appears under its
name complete or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from tinker_wire import models

from tinker.local.engines.protocol import EngineError
from tinker.types.paths import SCHEME, ParsedCheckpointTinkerPath

Kind: TypeAlias = Literal["weights", "sampler_weights"]
RECORD_FILE = "checkpoint.json"
MAX_NAME = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NOT_IN_NAMES = re.compile(r"[/\x00-\x1f\x7f]")


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a checkpoint besides its weights. Times are seconds since 1970."""

    path: str
    training_run_id: str
    kind: Kind
    name: str
    base_model: str
    engine_model: str
    lora_config: models.LoraConfig
    created_at: float
    expires_at: float | None = None
    nbytes: int = 0
    user_metadata: models.Metadata | None = None


class Checkpoints:
    """The checkpoints below one folder. ``now`` is the time of day in seconds since 1970."""

    def __init__(self, root: Path, now: Callable[[], float]) -> None:
        self._root, self._now = root, now

    def exists(self, run: str, kind: Kind, name: str) -> bool:
        """Whether a checkpoint of that name is there and has not expired; a damaged one is there."""
        try:
            return self._read(self._folder(run, kind, name)) is not None
        except EngineError:
            return True

    def find(self, path: str, kind: Kind) -> tuple[CheckpointRecord, Path]:
        """The record and folder of ``tinker://<run>/<kind>/<name>``. EngineError when it is not here or of another kind."""
        try:
            parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
        except ValueError as error:
            raise EngineError(str(error)) from error
        found, _, name = parsed.checkpoint_id.partition("/")
        if found != kind:
            wanted = "save_weights" if kind == "weights" else "save_weights_for_sampler"
            raise EngineError(f"{path} is a checkpoint of kind {found!r}; {kind!r} is needed here, made by {wanted}")
        folder = self._folder(parsed.training_run_id, kind, name)
        record = self._read(folder)
        if record is None:
            raise EngineError(f"there is no checkpoint {path} on this server")
        return record, folder

    def write(self, record: CheckpointRecord, save: Callable[[Path], None], *, overwrite: bool) -> CheckpointRecord:
        """Let ``save`` fill a folder and put it in place with its record. EngineError when the name is taken."""
        place = self._folder(record.training_run_id, record.kind, record.name)
        if not overwrite and self._read(place) is not None:
            raise EngineError(taken(record.path))
        with self._draft(place.parent) as draft:
            save(draft)
            record = msgspec.structs.replace(record, nbytes=_nbytes(draft))
            (draft / RECORD_FILE).write_bytes(msgspec.json.encode(record))
            self._replace(draft, place)
        return record

    def _folder(self, run: str, kind: Kind, name: str) -> Path:
        return self._root / folder_name(run) / kind / folder_name(name)

    def _read(self, folder: Path) -> CheckpointRecord | None:
        try:
            record = msgspec.json.decode((folder / RECORD_FILE).read_bytes(), type=CheckpointRecord)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise EngineError(f"the checkpoint in {folder.name} is damaged: {error}") from error
        expired = record.expires_at is not None and record.expires_at <= self._now()
        return None if expired else record

    @contextmanager
    def _draft(self, parent: Path) -> Generator[Path]:
        draft = parent / f".draft-{uuid.uuid4().hex}"
        draft.mkdir(parents=True)
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _replace(self, draft: Path, place: Path) -> None:
        """Put the draft where an older checkpoint may be; that one is moved aside first and then deleted."""
        old = draft.with_name(f".old-{uuid.uuid4().hex}")
        if place.exists():
            os.replace(place, old)
        os.replace(draft, place)
        shutil.rmtree(old, ignore_errors=True)


def checkpoint_path(run: str, kind: Kind, name: str) -> str:
    """What clients call a checkpoint."""
    return f"{SCHEME}{run}/{kind}/{name}"


def check_name(name: str) -> str:
    """The name itself; EngineError for one that could not stand in a path."""
    if not name.strip() or len(name) > MAX_NAME or _NOT_IN_NAMES.search(name):
        shown = name if len(name) <= MAX_NAME else f"{name[:40]}..."
        rule = f"1 to {MAX_NAME} characters without '/' and control characters"
        raise EngineError(f"{shown!r} cannot name a checkpoint; a name has {rule}")
    return name


def taken(path: str) -> str:
    """What the user reads when a name is in use."""
    return f"the checkpoint {path} exists; choose another name, or pass overwrite where the call takes it"


def folder_name(text: str) -> str:
    """A name for a folder that is safe on every file system and differs for every text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_UNSAFE.sub('_', text)[:64]}-{digest}"


def _nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
