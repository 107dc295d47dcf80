"""Weights on disk that are no checkpoints: those of samplers without a name, and those of runs that
survive a kill.

A run that makes a sampler after each step would fill the memory with weights of which only the last
few are used. So weights saved without a name are written to a folder of this server as well, and
read again when they are asked for. The folder goes with the model or the server; one that a killed
server left behind is removed by the next one that saves. With a journal they are kept beside the
runs instead.

Used by the engine's thread, by those of samplers that are elsewhere, and by the thread that closes
the server after them.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from tinker.local.engines.protocol import Engine, EngineError, Sampler
from tinker.local.storage.checkpoints import folder_name
from tinker.local.storage.disk import Owner, ServerFolder, new_folder
from tinker.local.storage.futures import RequestResult, ServerFuture
from tinker.local.storage.journal import FOLDER, Journal, JournalRun
from tinker.local.storage.sessions import LoadWeights, ModelRecord

IN_MEMORY = 8
SPOOL = ".unnamed"


_Key: TypeAlias = tuple[Path, float, int]  # the folder, when it was made, and the sampler


class Snapshots:
    """The snapshots of one server, most recently used first in memory."""

    def __init__(self, root: Path, owner: Owner, keep: Path | None = None) -> None:
        self._place = ServerFolder(root / SPOOL, owner, keep)
        self._lock = threading.Lock()  # held for no longer than it takes to look something up
        self._recent: OrderedDict[_Key, object] = OrderedDict()
        self._numbers = itertools.count()

    def get(self, sampler: Sampler, folder: Path, created_at: float = 0.0) -> object:
        """Return the weights in a folder; ``created_at`` tells them from later ones in the same
        folder.
        """
        key = (folder, created_at, id(sampler))
        with self._lock:
            found = self._recent.get(key)
        if found is None:
            if not folder.is_dir():
                raise EngineError("the weights of this sampling session are gone with its model")
            found = sampler.load_snapshot(folder)
        self._remember(key, found)
        return found

    def save(
        self, engine: Engine, adapter_id: str, name: str = "", *, in_memory: bool = True
    ) -> LoadWeights:
        """Keep the adapter's present weights; :meth:`restore` finds them by the name.

        Those ``in_memory`` are for the engine's own sampler; any other one reads them from the
        disk.
        """
        folder = self._folder(adapter_id) / (name or str(next(self._numbers)))
        with new_folder(folder):
            engine.save(adapter_id, folder, optimizer=False)
        if in_memory:
            self._remember((folder, 0.0, id(engine)), engine.snapshot(adapter_id))
        return lambda sampler: self.get(sampler, folder)

    def restore(self, adapter_id: str, name: str) -> LoadWeights:
        """Return the weights that an earlier process of this server kept under a name."""
        folder = self._folder(adapter_id) / name
        return lambda sampler: self.get(sampler, folder)

    def forget(self, adapter_id: str) -> None:
        """Drop everything saved from this adapter."""
        if not self._place.is_made:
            return
        folder = self._folder(adapter_id)
        with self._lock:
            for key in [key for key in self._recent if key[0].parent == folder]:
                del self._recent[key]
        shutil.rmtree(folder, ignore_errors=True)

    def clear(self) -> None:
        """Drop everything."""
        self._recent.clear()
        self._place.clear()

    def _remember(self, key: _Key, weights: object) -> None:
        with self._lock:
            self._recent[key] = weights
            self._recent.move_to_end(key)
            while len(self._recent) > IN_MEMORY:
                self._recent.popitem(last=False)

    def _folder(self, adapter_id: str) -> Path:
        return self._place.path() / folder_name(adapter_id)


class KeptRuns:
    """One folder for each run, with one for the step that the journal names; others
    are leftovers.
    """

    def __init__(self, root: Path, journal: Journal, droppable: frozenset[str]) -> None:
        self._root = root / FOLDER / "runs"
        self._journal = journal
        self._droppable = droppable

    @property
    def snapshots(self) -> Path:
        """Return where the weights of sampling sessions are kept."""
        return self._root.with_name("snapshots")

    def save(
        self,
        engine: Engine,
        model: ModelRecord,
        number: int,
        future: ServerFuture,
        result: RequestResult,
    ) -> None:
        """Keep the weights after a request, whose result is written down at the same moment.

        Where that fails, the run stays kept as it was, and the result is written when it is kept
        next.
        """
        self._journal.hold_result(model.model_id, future, result)
        folder = self._folder(model.model_id, number)
        run = JournalRun(model_id=model.model_id, number=number, optimizer=model.optimizer)
        with new_folder(folder):
            engine.save(model.model_id, folder, optimizer=True)
            self._journal.add_run(run, self._droppable)
        self._clean(folder)

    def load(self, engine: Engine, model: ModelRecord, run: JournalRun) -> None:
        """Load the weights of a run into the engine."""
        folder = self._folder(run.model_id, run.number)
        model.spec = engine.load(run.model_id, folder, optimizer=True)
        model.optimizer = run.optimizer
        self._clean(folder)

    def forget(self, model_id: str) -> None:
        """Remove the weights of a run that has ended."""
        self._journal.release_results(model_id)
        shutil.rmtree(self._root / folder_name(model_id), ignore_errors=True)

    def forget_others(self, model_ids: Iterable[str]) -> None:
        """Remove what belongs to no run: a server that was killed while it forgot one left it
        behind.
        """
        known = {folder_name(model_id) for model_id in model_ids}
        for place in (self._root, self.snapshots):
            for folder in place.iterdir() if place.is_dir() else ():
                if folder.name not in known:
                    shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, model_id: str, number: int) -> Path:
        return self._root / folder_name(model_id) / str(number)

    def _clean(self, kept: Path) -> None:
        for folder in kept.parent.iterdir():
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
