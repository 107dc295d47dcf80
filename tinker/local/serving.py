"""A server on a port: in the foreground for users, in a thread for tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import uvicorn

from tinker._config import is_loopback
from tinker.local.app import create_app
from tinker.local.connections import Connections, count_backlog, raise_descriptor_limit
from tinker.local.engines.opening import (
    DEFAULT_PLACEMENT,
    PACKAGED_MODEL,
    TOY_MODEL,
    EngineName,
    Placement,
    check_distinct,
    check_source,
    choose_engine,
    explain_absence_offline,
    open_engine,
)
from tinker.local.engines.protocol import Engine
from tinker.local.guard import guard_app, hostname
from tinker.local.scheduling.queues import ModelNotLoaded, OpenEngine
from tinker.local.settings import VLLM, Settings
from tinker.local.state import State
from tinker.local.storage.disk import make_data_folder
from tinker.local.storage.journal import RUNS

log: logging.Logger = logging.getLogger("tinker.local")
#: What users may mean by a name that is no model's.
MEANT = {TOY_MODEL: TOY_MODEL, "toy": TOY_MODEL, PACKAGED_MODEL: PACKAGED_MODEL}
FORCE_EXIT_SECONDS = 0.2  # between two looks whether a second Ctrl-C has come
# longer than clients pause between requests; a shorter one cuts connections under them
KEEP_ALIVE_SECONDS = 75


class _Server(uvicorn.Server):
    """uvicorn that releases the waiters for results before it waits for their connections to end.

    The request that runs is finished first, and answered like any other; a second Ctrl-C does
    without it.
    """

    def __init__(
        self, state: State, host: str = "127.0.0.1", ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._state = state
        settings = state.settings
        self._limits = Connections(
            settings.head_seconds, settings.body_seconds, settings.max_connections, ssl_context
        )
        config = uvicorn.Config(
            guard_app(create_app(state), settings, host),
            http=self._limits.protocol(),
            backlog=count_backlog(),
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
        self.came_up = threading.Event()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner(
            loop_factory=_choose_loop(has_tls=self._limits.tls is not None)
        ) as runner:
            runner.run(self.serve(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._limits.report)
        await super().startup(sockets)
        self.came_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.begin_close()
        while not self.force_exit and not await self._state.wait_for_step(FORCE_EXIT_SECONDS):
            pass
        await super().shutdown(sockets)


def _choose_loop(*, has_tls: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the loop; uvicorn's choice is the whole process's in its versions below
    0.36.
    """
    if not has_tls:  # uvloop may read before the handshake does
        with contextlib.suppress(ImportError):
            fast: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(
                "uvloop"
            ).new_event_loop
            return fast
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop
    return asyncio.SelectorEventLoop


def announce(
    url: str, engines: Sequence[Engine], *, has_key: bool = False, restored: str = ""
) -> None:
    """Print the models, the URLs, whether clients need a key, how to start, and what an earlier
    server left.
    """
    here = _reach_from_here(url)
    text = describe_start(here, *(engine.base_model for engine in engines), has_key=has_key)
    if url.startswith("https:"):
        text += f"\n\nClients use a name of the certificate in place of {hostname(here)}."
    elif here != url:
        text += (
            f"\n\nOther machines use this host's name, {socket.gethostname()}, in place of "
            f"{hostname(here)}."
        )
    if restored:
        text += f"\n\nRestored {restored}."
    sys.stdout.write(f"{text}\n")  # at once, for who reads the first line
    sys.stdout.flush()


def _reach_from_here(url: str) -> str:
    """Return the URL under which this machine reaches a server that may listen on every address."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def describe_start(url: str, base_model: str, *others: str, has_key: bool) -> str:
    """Return the startup message of a server of one or several base models. It does not contain the
    key.

    >>> print(describe_start("http://127.0.0.1:8000", "tinker/toy", has_key=False))
    Serving tinker/toy at http://127.0.0.1:8000 (TINKER_BASE_URL=http://127.0.0.1:8000)
    Key:  any, or none
    Page: http://127.0.0.1:8000/    API: http://127.0.0.1:8000/docs
    Stop: Ctrl-C
    <BLANKLINE>
        import tinker
        service = tinker.ServiceClient(base_url="http://127.0.0.1:8000")
        training = service.create_lora_training_client(base_model="tinker/toy", rank=8)
    """
    key = "the one this server was started with (TINKER_API_KEY)" if has_key else "any, or none"
    return f"""Serving {", ".join((base_model, *others))} at {url} (TINKER_BASE_URL={url})
Key:  {key}
Page: {url}/    API: {url}/docs
Stop: Ctrl-C

    import tinker
    service = tinker.ServiceClient(base_url="{url}")
    training = service.create_lora_training_client(base_model="{base_model}", rank=8)"""


def serve(
    *,
    model: str | Sequence[str] | None = None,
    engine: EngineName | Sequence[EngineName] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: Settings | None = None,
    ssl_context: ssl.SSLContext | None = None,
    started: Callable[[str, Sequence[Engine]], None] | None = None,
) -> None:
    """Load the engine, then serve until interrupted (Ctrl-C, SIGTERM): the running request is
    finished, waiting ones fail.

    Several names of a ``model`` make a server of several base models, the first of which is the
    default; ``engine`` is then that of all of them, or has one name for each. ``port`` 0 picks a
    free one. ``started`` is called with the base URL and the engines once connections are accepted;
    by default it prints where things are and how to begin. ``ssl_context`` is one of
    ``ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)`` with the certificate of the server; None
    serves plain HTTP. A server that others can reach says in the log that it has no key, or that it
    has one and no TLS to protect it. Raises OSError when the port is taken or the data folder
    cannot be written, also at the end; ImportError when the engine is not installed; ValueError for
    models of one name and for a device that this machine does not have.
    """
    raise_descriptor_limit()
    check_port(host, port)
    settings = settings or Settings()
    make_data_folder(settings.data_dir)
    loaded = [open_one() for open_one in _engine_openers(engine, model, settings.placement)]
    check_distinct(loaded)
    state = _make_state(_engine_openers(loaded, None, settings.placement), settings)
    if state.shares_folder():
        log.warning(
            "another server uses %s too: each has its own runs, and both have all checkpoints",
            settings.data_dir,
        )
    _open_samplers(state)
    try:
        listener = _listen(host, port)
    except OSError:  # another program has taken it in the meantime
        state.close()
        raise
    try:
        url, has_key = _url(listener, ssl_context), settings.api_key is not None
        if not is_loopback(host):
            _warn_of_others(url, has_key=has_key, has_tls=ssl_context is not None)
        report = started or functools.partial(
            announce, has_key=has_key, restored=_describe_restored(state)
        )
        server = _Server(state, host, ssl_context)
        # A signal counts from the first line on, and uvicorn raises it again when it has shut down.
        with (
            _terminate_like_interrupt(),
            contextlib.suppress(KeyboardInterrupt),
            server.capture_signals(),
        ):
            report(url, loaded)
            server.run(sockets=[listener])
        if (error := state.close_error) is not None:
            reason = error.strerror or type(error).__name__
            raise OSError(
                "the server has ended, and nothing can be written "
                f"to {settings.data_dir} now: {reason}"
            ) from error
    finally:
        listener.close()


def _describe_restored(state: State) -> str:
    """Return how many runs and checkpoints the data folder has, and its name; empty
    if it has none.
    """
    counts = {"run": len(state.journal.read(RUNS)), "checkpoint": len(state.checkpoints.list())}
    found = [f"{count} {what}{'s' * (count > 1)}" for what, count in counts.items() if count]
    return f"{' and '.join(found)} from {state.settings.data_dir}" if found else ""


def _make_state(openers: Sequence[OpenEngine], settings: Settings) -> State:
    """Make the state of a server. Raises ValueError for several models and one list of samplers."""
    if not settings.sampler:
        return State(openers, settings)
    from tinker.local.engines.vllm import open_vllm

    urls = () if settings.sampler == (VLLM,) else settings.sampler
    if urls and len(openers) > 1:
        raise ValueError(
            f"samplers at URLs serve one base model; for {len(openers)} models "
            f"use the sampler {VLLM!r}"
        )
    # a sampler asks for the name of the engine that is open
    engines = [functools.cache(one) for one in openers]
    arguments = urls, settings.sampler_args, settings.placement, settings.data_dir
    return State(
        engines,
        settings,
        samplers=[functools.partial(open_vllm, one, *arguments) for one in engines],
    )


def _open_samplers(state: State) -> None:
    """Wait for samplers that are elsewhere, before anyone can use them. Raises OSError for one that
    does not start.
    """
    try:
        for served in state.served.models:
            served.open_sampler()
    except ModelNotLoaded as error:
        state.close()
        raise OSError(str(error)) from error


def _warn_of_others(url: str, *, has_key: bool, has_tls: bool) -> None:
    """Warn that anyone who can reach the server can use it, or can read the key of those who do."""
    if not has_key:
        log.warning("this server has no key: anyone who can reach %s can use it", url)
    elif not has_tls:
        log.warning(
            "clients send their key to %s unencrypted: give --tls-cert and --tls-key, or put a "
            "proxy with TLS in front",
            url,
        )


@contextmanager
def _terminate_like_interrupt() -> Generator[None]:
    """Handle SIGTERM like Ctrl-C: uvicorn raises both again after its shutdown, and only SIGINT
    raises an exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def running_server(
    settings: Settings | None = None,
    engine: Engine | EngineName | Sequence[Engine | EngineName] = "toy",
    *,
    model: str | Sequence[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Generator[str]:
    """Run a server on a free port of this machine, in a thread; yields its base URL.

    Several models and ``ssl_context`` are given as to :func:`serve`. The end of the block fails
    what is pending and ends the server's threads.
    """
    chosen = settings or Settings()
    with serve_in_thread(
        _make_state(_engine_openers(engine, model, chosen.placement), chosen), ssl_context
    ) as url:
        yield url


@contextmanager
def serve_in_thread(state: State, ssl_context: ssl.SSLContext | None = None) -> Generator[str]:
    """Run :func:`running_server` for a state that the caller made and may look into."""
    listener = _listen("127.0.0.1", 0)
    server = _Server(state, ssl_context=ssl_context)

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
        yield _url(listener, ssl_context)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _engine_openers(
    engine: Engine | EngineName | Sequence[Engine | EngineName] | None,
    model: str | Sequence[str] | None,
    placement: Placement,
) -> list[OpenEngine]:
    """Return the opener of each engine; the placement is for torch engines.

    Raises ValueError where there are more engines than models, or too few.
    """
    names: list[str | None] = (
        [model] if model is None or isinstance(model, str) else [*model] or [None]
    )
    engines: list[Engine | EngineName | None] = (
        [engine] if isinstance(engine, str) or not isinstance(engine, Sequence) else [*engine]
    )
    if model is None and len(engines) > 1:
        names = [None] * len(engines)
    if len(engines) == 1:
        engines *= len(names)
    if len(engines) != len(names):
        raise ValueError(
            f"{len(names)} models and {len(engines)} engines: name one engine for all, "
            "or one for each model"
        )
    pairs = list(zip(engines, names, strict=True))
    # the placement is not for toy engines next to it
    has_torch = any(_is_torch(*pair) for pair in pairs)
    places = [
        placement if _is_torch(*pair) or not has_torch else DEFAULT_PLACEMENT for pair in pairs
    ]
    return [
        functools.partial(_open_engine, *pair, place)
        for pair, place in zip(pairs, places, strict=True)
    ]


def _is_torch(engine: Engine | EngineName | None, model: str | None) -> bool:
    return (engine is None or isinstance(engine, str)) and choose_engine(engine, model) == "torch"


def _open_engine(
    engine: Engine | EngineName | None, model: str | None, placement: Placement
) -> Engine:
    """Open an engine, which may be one already."""
    if engine is not None and not isinstance(engine, str):
        return engine
    check_source(engine, model, MEANT)
    with explain_absence_offline(model):
        return open_engine(engine, model, placement)


def check_port(host: str, port: int) -> None:
    """Raise OSError for a port that is taken. While a model is loaded, nothing listens there."""
    _listen(host, port).close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # inherited; else each answer waits 40 ms for an ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _url(listener: socket.socket, ssl_context: ssl.SSLContext | None) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if ssl_context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
