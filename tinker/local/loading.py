"""The models that load in this process: what loads now, and who is told. Loading does not count against a request's time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from tinker._tokenizers import describe_offline, find_absence
from tinker.local.engines.opening import EngineName, check_directory, choose_engine, missing_parts
from tinker.local.engines.placement import PACKAGED_MODEL
from tinker.local.engines.protocol import Engine
from tinker.local.scheduling.steps import OpenEngine
from tinker_records import find_closest

#: Told in the engine's thread what loads now, None once nothing does.
Listener: TypeAlias = Callable[[str | None], object]


def check_source(engine: EngineName | None, model: str | None, meant: Mapping[str, str]) -> None:
    """Raise OSError for a model that cannot be loaded: a path without a directory, or a name unknown to the hub and its cache.

    This takes one request. ``meant`` has the names of models that may
    have been meant, and how the message writes them.
    """
    if model is None or model == PACKAGED_MODEL or choose_engine(engine, model) != "torch":
        return
    check_directory(model)
    if missing_parts() or Path(model).is_dir():
        return
    if (absence := find_absence(model, ["config.json"], kind="model")) is not None:
        closest = find_closest(model.lower(), meant)
        if closest is not None:
            raise OSError(f"cannot load {model!r}; did you mean {meant[closest]}? ({absence})")
        raise OSError(f"cannot load {model!r}: {absence}; give a directory")


@contextmanager
def explain_absence_offline(model: str | None) -> Generator[None]:
    """Raise an OSError that names the model where a block fails to load it because the hub cannot be reached."""
    try:
        yield
    except OSError as error:
        if type(error.__cause__).__name__ != "LocalEntryNotFoundError":  # of huggingface_hub, which need not be installed
            raise
        raise OSError(f"cannot load {model!r}: {describe_offline()}; give a directory") from error


class Loading:
    """What the server of this process loads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what: str | None = None
        self._listeners: list[Listener] = []

    def open(self, what: str, open_engine: OpenEngine) -> Engine:
        """Open an engine; meanwhile the listeners know what loads."""
        self._change(what)
        try:
            return open_engine()
        finally:
            self._change(None)

    def watch(self, listener: Listener) -> None:
        """Tell this listener, at once, what loads now, and then of every change."""
        with self._lock:
            self._listeners.append(listener)
            listener(self._what)

    def unwatch(self, listener: Listener) -> None:
        """Tell this listener nothing any more."""
        with self._lock:
            self._listeners.remove(listener)

    def _change(self, what: str | None) -> None:
        with self._lock:
            self._what = what
            for listener in self._listeners:
                listener(what)
