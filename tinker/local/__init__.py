"""A server of our own: the whole API on this machine, over HTTP or inside the process.

Needs the extra ``server``; the extra ``local`` adds what training real models takes.
"""

from typing import TYPE_CHECKING

from tinker._basics.lazy import LazyNames

if TYPE_CHECKING:
    from tinker.local.app import close_in_process as close_in_process
    from tinker.local.app import create_app as create_app
    from tinker.local.app import in_process_app as in_process_app
    from tinker.local.engines import open_engine as open_engine
    from tinker.local.serving import running_server as running_server
    from tinker.local.serving import serve as serve
    from tinker.local.serving import serve_in_thread as serve_in_thread
    from tinker.local.settings import Settings as Settings
    from tinker.local.state import State as State
else:
    _names = LazyNames(__name__)
    __dir__ = _names.list

    def __getattr__(name: str) -> object:
        try:
            return _names.load(name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in ("starlette", "uvicorn"):
                raise
            from tinker._basics.installation import install_command

            advice = (
                "pip install '.[local]' in a checkout of this package, or "
                f"{install_command('local')}"
            )
            raise ImportError(f"a local server needs {missing}: {advice}") from error
