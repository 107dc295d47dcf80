"""Weights to sample from: a few in memory, all on disk.

A run that makes a sampler after each step would fill the memory with weights of which only the last few are used. So
weights saved without a name are written to a folder of this server as well, and read again when they are asked for. The
folder goes with the model or the server; one that a killed server left behind is removed by the next one that saves. A server
that goes on after its end keeps them with its runs instead, in the folder ``keep``.

Used by the engine's thread, and by the thread that closes the server after that one has ended.
"""

from __future__ import annotations

import itertools
import shutil
from collections import OrderedDict
from pathlib import Path

from tinker.local.engines import Engine, EngineError
from tinker.local.storage.checkpoint_records import folder_name
from tinker.local.storage.folders import new_folder
from tinker.local.storage.owners import Owner
from tinker.local.storage.sessions import LoadWeights

IN_MEMORY = 8
SPOOL = ".unnamed"


class Snapshots:
    """The snapshots of one server, most recently used first in memory."""

    def __init__(self, root: Path, owner: Owner, keep: Path | None = None) -> None:
        self._root, self._owner = root / SPOOL, owner
        self._mine: Path | None = keep
        self._is_kept = keep is not None
        self._recent: OrderedDict[tuple[Path, float], object] = OrderedDict()
        self._numbers = itertools.count()

    def get(self, engine: Engine, folder: Path, created_at: float = 0.0) -> object:
        """Return the weights in a folder; ``created_at`` tells them from later ones in the same folder."""
        key = (folder, created_at)
        if key not in self._recent:
            if not folder.is_dir():
                raise EngineError("the weights of this sampling session are gone with its model")
            self._remember(key, engine.load_snapshot(folder))
        self._recent.move_to_end(key)
        return self._recent[key]

    def save(self, engine: Engine, adapter_id: str, name: str = "") -> LoadWeights:
        """Keep the adapter's present weights; :meth:`restore` finds them by the name."""
        folder = self._folder(adapter_id) / (name or str(next(self._numbers)))
        with new_folder(folder):
            engine.save(adapter_id, folder, optimizer=False)
        self._remember((folder, 0.0), engine.snapshot(adapter_id))
        return lambda engine: self.get(engine, folder)

    def restore(self, adapter_id: str, name: str) -> LoadWeights:
        """Return the weights that an earlier process of this server kept under a name."""
        folder = self._folder(adapter_id) / name
        return lambda engine: self.get(engine, folder)

    def forget(self, adapter_id: str) -> None:
        """Drop everything saved from this adapter."""
        if self._mine is None:
            return
        folder = self._folder(adapter_id)
        for key in [key for key in self._recent if key[0].parent == folder]:
            del self._recent[key]
        shutil.rmtree(folder, ignore_errors=True)

    def clear(self) -> None:
        """Drop everything."""
        self._recent.clear()
        if self._mine is not None and not self._is_kept:
            shutil.rmtree(self._mine, ignore_errors=True)
            self._mine = None

    def _remember(self, key: tuple[Path, float], weights: object) -> None:
        self._recent[key] = weights
        while len(self._recent) > IN_MEMORY:
            self._recent.popitem(last=False)

    def _folder(self, adapter_id: str) -> Path:
        if self._mine is None:
            self._mine = self._root / self._owner.claim()
            self._mine.mkdir(parents=True, exist_ok=True)
            self._remove_orphans()
        return self._mine / folder_name(adapter_id)

    def _remove_orphans(self) -> None:
        """Remove folders whose server is no longer running (where the system can tell)."""
        for folder in self._root.iterdir():
            if self._owner.is_dead(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
