"""The record of a checkpoint, and the rules for its name."""

from __future__ import annotations

import datetime
import hashlib
import re
from typing import Literal, TypeAlias, get_args

import msgspec
from tinker_wire import models

from tinker._shown import clean
from tinker.local.engines.protocol import EngineError
from tinker.types.paths import SCHEME

CheckpointKind: TypeAlias = Literal["weights", "sampler_weights", "external_weights"]
CHECKPOINT_KINDS: tuple[CheckpointKind, ...] = get_args(CheckpointKind)
MAX_NAME = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a checkpoint. Times are seconds since 1970.

    ``session_id``, ``project_id`` and ``run_metadata`` are those of the run when it was saved (or moved, or copied), and
    ``steps`` are the steps that it had taken.
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
    if not name.strip() or name in (".", "..") or len(name) > MAX_NAME or "/" in name or clean(name) != name:
        shown = name if len(name) <= MAX_NAME else f"{name[:40]}..."
        rule = f"1 to {MAX_NAME} characters without '/' and control characters, and not '.' or '..'"
        raise EngineError(f"{shown!r} cannot name a checkpoint; a name has {rule}")
    return name


def name_conflict(path: str) -> str:
    """Return the error message for a name that is in use."""
    return f"the checkpoint {path} exists; choose another name, or replace it with save_state(name, overwrite=True)"


def folder_name(text: str) -> str:
    """Return a folder name that is safe on every file system and differs for every text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{_UNSAFE.sub('_', text)[:64]}-{digest}"


def to_utc(seconds: float) -> datetime.datetime:
    """Return seconds since 1970 as a time in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
