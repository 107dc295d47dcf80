"""The base models of a server: their engines, opened on first use, and the samples that wait for each or run in it."""

from __future__ import annotations

from collections.abc import Sequence

from tinker.local.engines import Engine, check_distinct
from tinker.local.scheduling.samples import SampleQueue
from tinker.local.scheduling.steps import ModelNotLoaded, OpenEngine
from tinker.local.storage.results import ServerFuture


class ServedModel:
    """One of the base models. ``engine`` is None until the engine's thread has opened it."""

    def __init__(self, open_engine: OpenEngine, samples: SampleQueue) -> None:
        self._open = open_engine
        self.samples = samples
        self.engine: Engine | None = None

    def open(self) -> Engine:
        """Return the engine; only in the engine's thread. A failed attempt is repeated by the next step.

        Raises ModelNotLoaded when something is missing: a package, a file, a device.
        """
        if self.engine is None:
            try:
                self.engine = self._open()
            except (ImportError, OSError, ValueError) as error:
                raise ModelNotLoaded(f"the model could not be loaded: {error}") from error
        return self.engine


class ServedModels:
    """All of them, the first of which is the default. ``engines`` is empty until every one is open."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models: tuple[ServedModel, ...] = tuple(models)
        self.engines: Sequence[Engine] = ()

    def open_all(self, open_first: OpenEngine) -> None:
        """Open every engine, the first one by ``open_first``; only in the engine's thread. ValueError for two of one name."""
        open_first()
        engines = [model.open() for model in self.models]
        check_distinct(engines)
        self.engines = engines

    def find(self, engine_model: str) -> ServedModel:
        """Return the base model whose engine, which is open, goes by this name."""
        return next(one for one in self.models if one.engine is not None and one.engine.base_model == engine_model)

    def drop_sample(self, future: ServerFuture) -> None:
        """Take a sample out that has not begun."""
        for model in self.models:
            model.samples.drop(future)
