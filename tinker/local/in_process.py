"""The servers inside this process, one for each ``local://`` URL and data folder, shared by all
clients of the process.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, get_args
from urllib.parse import parse_qsl

from starlette.types import ASGIApp

from tinker.local.app import create_app
from tinker.local.engines.opening import (
    PACKAGED_MODEL,
    TOY_MODEL,
    EngineName,
    check_source,
    choose_engine,
    open_engine,
)
from tinker.local.engines.protocol import Engine
from tinker.local.scheduling.queues import OpenEngine
from tinker.local.settings import Settings
from tinker.local.state import State
from tinker.local.storage.disk import make_data_folder
from tinker_records import find_closest

SCHEME = "local://"
TOY = "toy"
OPTIONS = ("engine", "profile", "device", "dtype", "device_map", "quantize", "recompute")
_lock = threading.Lock()
_running: dict[tuple[str, Path], tuple[State, ASGIApp]] = {}


#: Called in the engine's thread with the name of the loading model, or None when loading is done.
Listener: TypeAlias = Callable[[str | None], object]


class Loading:
    """The model loading in this process, and its listeners. Loading does not count against a
    request's deadline.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what: str | None = None
        self._listeners: list[Listener] = []

    def open(self, what: str, open_engine: OpenEngine) -> Engine:
        """Open an engine, notifying the listeners before and after."""
        self._change(what)
        try:
            return open_engine()
        finally:
            self._change(None)

    def watch(self, listener: Listener) -> None:
        """Call this listener with what loads now, and then on every change."""
        with self._lock:
            self._listeners.append(listener)
            listener(self._what)

    def unwatch(self, listener: Listener) -> None:
        """Remove a listener."""
        with self._lock:
            self._listeners.remove(listener)

    def _change(self, what: str | None) -> None:
        with self._lock:
            self._what = what
            for listener in self._listeners:
                listener(what)


def in_process_app(url: str, data_dir: Path | None = None) -> ASGIApp:
    """Return the application behind a ``local://`` URL; the same one each time, made on the first
    call, opened on first use.

    ``local://`` trains the packaged model in numpy, or with torch as ``local://?engine=torch``.
    ``local://toy`` is a toy. ``local:///absolute/path`` and ``local://org/name`` load that model
    with torch. A query sets what the server passes for, as in ``local://toy?profile=skyrl``, and
    where it computes, as in ``local://org/name?device=cuda:1&dtype=float16``, each as in
    :class:`Settings`. ``data_dir`` None means ``~/.tinker/local``. A child process made by ``fork``
    starts with none. ValueError for another scheme or query, FileNotFoundError for a path where
    there is no directory, OSError for a name that neither the hub nor its cache has, and for a
    ``data_dir`` that cannot be written.
    """
    name, options = _parse_url(url)
    engine, model = _choose_model(name, options.pop("engine", None))
    settings = Settings(data_dir=data_dir, **options)
    key = (url, settings.data_dir)
    if key not in _running:
        check_source(
            engine, model, {known: f"{SCHEME}{known}" for known in (TOY, TOY_MODEL, PACKAGED_MODEL)}
        )
        if data_dir is not None:  # the default one is made on the first save, as few need it
            try:
                make_data_folder(settings.data_dir)
            except OSError as error:
                raise OSError(f"{error}; set TINKER_LOCAL_DIR to another") from error
    with _lock:
        if key not in _running:
            loading = Loading()
            state = State(_engine_opener(engine, model, settings, loading), settings)
            app = create_app(state)
            app.state.loading = loading  # for the client, whose requests wait for it
            _running[key] = state, app
        return _running[key][1]


def close_in_process() -> None:
    """End every server of this process: pending requests fail, and the next call starts afresh."""
    with _lock:
        states = [state for state, _ in _running.values()]
        _running.clear()
    for state in states:
        state.close()


def _parse_url(url: str) -> tuple[str, dict[str, Any]]:
    """Return the model's name, empty for the default one, and the settings of the query."""
    if not url.startswith(SCHEME):
        raise ValueError(
            f"a server in this process has a URL that starts with {SCHEME}, not {url!r}"
        )
    name, _, query = url.removeprefix(SCHEME).partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    for unknown in given.keys() - set(OPTIONS):
        meant = find_closest(unknown, OPTIONS)
        advice = "" if meant is None else f"; for {unknown!r}, did you mean {meant!r}?"
        raise ValueError(
            f"the query of {url!r} may contain {', '.join(OPTIONS)}, and nothing else{advice}"
        )
    return name, given


def _choose_model(name: str, engine: str | None) -> tuple[EngineName | None, str | None]:
    """Return the engine and the model of a URL. Raises ValueError for an engine
    that there is not.
    """
    known: tuple[EngineName, ...] = ("toy",) if name == TOY else get_args(EngineName)
    if engine not in (None, *known):
        raise ValueError(
            f"engine is {engine!r}; for {SCHEME}{name} it must be one of {', '.join(known)}"
        )
    return (
        ("toy", None)
        if name == TOY
        else (next((one for one in known if one == engine), None), name or None)
    )


def _engine_opener(
    engine: EngineName | None, model: str | None, settings: Settings, loading: Loading
) -> OpenEngine:
    opener = functools.partial(open_engine, engine, model, settings.placement)
    if choose_engine(engine, model) != "torch":
        return opener
    return functools.partial(loading.open, f"torch and {model or PACKAGED_MODEL}", opener)


def _reset_after_fork() -> None:
    """Start with no servers: the parent's threads do not exist here, and its locks may be held by
    them.
    """
    global _lock
    _lock = threading.Lock()
    _running.clear()


atexit.register(close_in_process)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
