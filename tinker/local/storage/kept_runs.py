"""The weights of every run, with its optimizer, as they were after its last step: for the server that goes on after a kill.

Used by the engine's thread.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from tinker.local.engines import Engine
from tinker.local.storage.checkpoint_records import folder_name
from tinker.local.storage.folders import new_folder
from tinker.local.storage.journal import FOLDER, Journal, JournalRun
from tinker.local.storage.results import RequestResult, ServerFuture
from tinker.local.storage.sessions import ModelRecord


class KeptRuns:
    """One folder for each run, with one for the step that the journal names; others are leftovers."""

    def __init__(self, root: Path, journal: Journal, droppable: frozenset[str]) -> None:
        self._root = root / FOLDER / "runs"
        self._journal = journal
        self._droppable = droppable

    @property
    def snapshots(self) -> Path:
        """Return where the weights of sampling sessions are kept."""
        return self._root.with_name("snapshots")

    def save(self, engine: Engine, model: ModelRecord, number: int, future: ServerFuture, result: RequestResult) -> None:
        """Keep the weights after a request, whose result is written down at the same moment.

        Where that fails, the run stays kept as it was, and the result is written when it is kept next.
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
        """Remove the weights of a run that is gone."""
        self._journal.release_results(model_id)
        shutil.rmtree(self._root / folder_name(model_id), ignore_errors=True)

    def forget_others(self, model_ids: Iterable[str]) -> None:
        """Remove what belongs to no run: a server that was killed while it forgot one left it behind."""
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
