"""A server on a port: in the foreground for users, in a thread for tests."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

from tinker.local.app import create_app
from tinker.local.engines import Engine, EngineName, open_engine
from tinker.local.guard import guard_app
from tinker.local.hosts import is_this_machine
from tinker.local.scheduling import OpenEngine
from tinker.local.settings import Settings
from tinker.local.state import State

log: logging.Logger = logging.getLogger("tinker.local")
KEEP_ALIVE_SECONDS = 75  # longer than clients pause between requests; a shorter one cuts connections under them


class _Server(uvicorn.Server):
    """uvicorn that releases the waiters for results before it waits for their connections to end."""

    def __init__(self, state: State, host: str = "127.0.0.1") -> None:
        self._state = state
        config = uvicorn.Config(
            guard_app(create_app(state), state.settings, host),
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
        self.came_up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.came_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.begin_close()
        await super().shutdown(sockets)


def announce(url: str, engine: Engine) -> None:
    """Print one line: what is served where, and how to point a client at it."""
    print(f"Serving {engine.base_model} at {url} (TINKER_BASE_URL={url})", flush=True)  # noqa: T201 - for the user


def serve(
    *,
    model: str | None = None,
    engine: EngineName | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: Settings | None = None,
    started: Callable[[str, Engine], None] = announce,
) -> None:
    """Load the engine, then serve until interrupted (Ctrl-C, SIGTERM); what is pending then fails.

    ``port`` 0 picks a free one. ``started`` is called with the base URL and the engine once connections are accepted; by
    default it prints one line. A server that others can reach and that has no key says so in the log.
    Raises OSError when the port is taken, ImportError when the engine is not installed.
    """
    listener = _listen(host, port)
    try:
        loaded = open_engine(engine, model)
        state = State(lambda: loaded, settings)
        if state.settings.api_key is None and not is_this_machine(host):
            log.warning("anyone who can reach %s may use this server: it has no key", _url(listener))
        started(_url(listener), loaded)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once it has shut down
            _Server(state, host).run(sockets=[listener])
    finally:
        listener.close()


@contextmanager
def running_server(
    settings: Settings | None = None, engine: Engine | EngineName = "toy", *, model: str | None = None
) -> Generator[str]:
    """Run a server on a free port of this machine, in a thread; yields its base URL.

    The end of the block fails what is pending and ends every thread of the server.
    """
    with serve_in_thread(State(_engine_opener(engine, model), settings)) as url:
        yield url


@contextmanager
def serve_in_thread(state: State) -> Generator[str]:
    """Run :func:`running_server` for a state that the caller made and may look into."""
    listener = _listen("127.0.0.1", 0)
    server = _Server(state)

    def run() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            server.came_up.set()

    thread = threading.Thread(target=run, name="tinker-server", daemon=True)
    thread.start()
    server.came_up.wait()
    try:
        if not server.started:
            raise RuntimeError("the server did not start; its log says why")
        yield _url(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _engine_opener(engine: Engine | EngineName, model: str | None) -> OpenEngine:
    if isinstance(engine, str):
        return functools.partial(open_engine, engine, model)
    return lambda: engine


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited; else each answer waits 40 ms for an ACK
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
