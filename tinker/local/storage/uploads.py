"""Adapters that clients bring: their files while they arrive, in a folder of this server.

A file is written under a name of its own and moved to its place when all of it is there, and only
files that the engine asked for have a place. An upload is forgotten some time after its links end;
the folder goes with the server, and one that a killed server left behind is removed by the next
one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import attrs

from tinker.local.engines.protocol import AdapterSpec, Engine
from tinker.local.storage.disk import Owner, ServerFolder

FOLDER_NAME = ".uploads"
#: Seconds after the end of its links in which an upload can still be finished, by a client whose
#: request was lost.
GRACE_SECONDS = 600.0
#: Seconds without a byte after which an upload makes room for others that need it.
SILENT_SECONDS = 60.0


@attrs.define(eq=False, kw_only=True)
class AdapterUpload:
    """One upload: the announced adapter and its files. ``tinker_path`` is set once it is a
    checkpoint.

    ``arriving`` counts the files that are arriving now, ``last_seen`` is when the last one ended.
    """

    upload_id: str
    base_model: str
    engine_model: str
    spec: AdapterSpec
    project_id: str | None
    names: frozenset[str]
    folder: Path
    expires_at: float
    last_seen: float
    arriving: int = 0
    tinker_path: str | None = None

    @property
    def missing(self) -> Sequence[str]:
        """Return the files that have not arrived."""
        return sorted(name for name in self.names if not (self.folder / name).is_file())

    @contextlib.contextmanager
    def receiving(self, now: Callable[[], float]) -> Generator[Path]:
        """Yield where a file is written while it arrives; it is removed unless it was put in its
        place.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".part-{uuid.uuid4().hex}"
        self.arriving += 1
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)
            self.arriving, self.last_seen = self.arriving - 1, now()

    def put(self, part: Path, name: str) -> None:
        """Move a file that has arrived to its place."""
        assert name in self.names
        os.replace(part, self.folder / name)


class Uploads:
    """The uploads of one server. ``now`` is seconds since 1970."""

    def __init__(self, root: Path, owner: Owner, now: Callable[[], float]) -> None:
        self._place, self._now = ServerFolder(root / FOLDER_NAME, owner), now
        self._uploads: dict[str, AdapterUpload] = {}

    def has_room(self, limit: int) -> bool:
        """Return whether fewer than ``limit`` are not finished, without those that have been silent
        for long.
        """
        self._forget_expired()
        if self._count_open() >= limit:
            silent = self._now() - SILENT_SECONDS
            for upload in [
                one
                for one in self._uploads.values()
                if not one.arriving and one.last_seen <= silent
            ]:
                if upload.tinker_path is None:
                    self.drop(upload)
        return self._count_open() < limit

    def _count_open(self) -> int:
        return sum(upload.tinker_path is None for upload in self._uploads.values())

    def open(
        self,
        base_model: str,
        engine: Engine,
        spec: AdapterSpec,
        project_id: str | None,
        seconds: float,
    ) -> AdapterUpload:
        """Begin an upload of the files that the engine asks for; its links end in ``seconds``."""
        upload_id = str(uuid.uuid4())
        upload = self._uploads[upload_id] = AdapterUpload(
            upload_id=upload_id,
            base_model=base_model,
            engine_model=engine.base_model,
            spec=spec,
            project_id=project_id,
            names=engine.adapter_files,
            folder=self._place.path() / upload_id,
            expires_at=self._now() + seconds + GRACE_SECONDS,
            last_seen=self._now(),
        )
        return upload

    def find(self, upload_id: str) -> AdapterUpload | None:
        """Return an upload; None when it is unknown or forgotten."""
        self._forget_expired()
        return self._uploads.get(upload_id)

    def drop(self, upload: AdapterUpload) -> None:
        """Forget an upload and its files."""
        self._uploads.pop(upload.upload_id, None)
        shutil.rmtree(upload.folder, ignore_errors=True)

    def finish(self, upload: AdapterUpload, tinker_path: str) -> None:
        """Record the resulting checkpoint, and delete the uploaded files."""
        upload.tinker_path = tinker_path
        shutil.rmtree(upload.folder, ignore_errors=True)

    def clear(self) -> None:
        """Drop everything."""
        self._uploads.clear()
        self._place.clear()

    def _forget_expired(self) -> None:
        for upload in [
            upload for upload in self._uploads.values() if upload.expires_at <= self._now()
        ]:
            self.drop(upload)
