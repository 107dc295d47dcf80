"""The models that load in this process: what loads now, and who is told. Loading does not count against a request's time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeAlias

from tinker.local.engines import Engine
from tinker.local.scheduling import OpenEngine

#: Told in the engine's thread what loads now, None once nothing does.
Listener: TypeAlias = Callable[[str | None], object]


@contextmanager
def explain_absence_offline(model: str | None) -> Generator[None]:
    """Raise an OSError that names the model where a block fails to load it because the hub cannot be reached."""
    try:
        yield
    except OSError as error:
        if type(error.__cause__).__name__ != "LocalEntryNotFoundError":  # of huggingface_hub, which need not be installed
            raise
        absence = "no connection to huggingface.co, and it is not in the cache"
        raise OSError(f"cannot load {model!r}: {absence}; give a directory") from error


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
