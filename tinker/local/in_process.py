"""The servers inside this process, one for each ``local://`` URL and data folder, shared by all clients of the process."""

from __future__ import annotations

import atexit
import functools
import os
import threading
from pathlib import Path
from urllib.parse import parse_qsl

from starlette.types import ASGIApp

from tinker.local.app import create_app
from tinker.local.engines import open_engine
from tinker.local.profiles import OFFICIAL
from tinker.local.scheduling import OpenEngine
from tinker.local.settings import Settings
from tinker.local.state import State

SCHEME = "local://"
TOY = "toy"
_lock = threading.Lock()
_running: dict[tuple[str, Path], tuple[State, ASGIApp]] = {}


def in_process_app(url: str, data_dir: Path | None = None) -> ASGIApp:
    """Return the application behind a ``local://`` URL; the same one each time, made on the first call, opened on first use.

    ``local://`` trains the packaged model with torch, or a toy where torch is not installed. ``local://toy`` is the toy.
    ``local:///absolute/path`` and ``local://org/name`` load that model with torch. A query sets what the server passes for,
    as in ``local://toy?profile=skyrl``. ``data_dir`` None means ``~/.tinker/local``. ValueError for another scheme or query.
    A child process made by ``fork`` starts with none.
    """
    name, profile = _parse_url(url)
    settings = Settings(data_dir=data_dir, profile=profile)
    key = (url, settings.data_dir)
    with _lock:
        if key not in _running:
            state = State(_engine_opener(name), settings)
            _running[key] = state, create_app(state)
        return _running[key][1]


def close_in_process() -> None:
    """End every server of this process: pending requests fail, and the next call starts afresh."""
    with _lock:
        states = [state for state, _ in _running.values()]
        _running.clear()
    for state in states:
        state.close()


def _parse_url(url: str) -> tuple[str, str]:
    """Return the model's name, empty for the default one, and the profile's."""
    if not url.startswith(SCHEME):
        raise ValueError(f"a server in this process has a URL that starts with {SCHEME}, not {url!r}")
    name, _, query = url.removeprefix(SCHEME).partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    profile = given.pop("profile", OFFICIAL.name)
    if given:
        raise ValueError(f"the query of {url!r} may hold profile=..., and nothing else")
    return name, profile


def _engine_opener(name: str) -> OpenEngine:
    if name == TOY:
        return functools.partial(open_engine, "toy")
    return functools.partial(open_engine, None, name or None)


def _reset_after_fork() -> None:
    """Start with no servers: the parent's threads do not exist here, and its locks may be held by them."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


atexit.register(close_in_process)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
