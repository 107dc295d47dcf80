"""The collaborators of one service client, wired into one frozen value. It has no methods: what to do is in the clients."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from tinker._clock import Clock
from tinker._config import Config
from tinker._http import Auth, Observers, Transport, find_source, open_engine
from tinker._loop import LoopThread, loop_thread
from tinker._session import Description, Server, Session, Telemetry, shut_down
from tinker.observing import Observer

if TYPE_CHECKING:
    import httpx


@attrs.frozen(eq=False)
class Runtime:
    """Everything the clients of one session share."""

    config: Config
    clock: Clock
    thread: LoopThread
    transport: Transport
    server: Server
    session: Session
    telemetry: Telemetry | None


def open_runtime(
    config: Config,
    description: Description,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    observers: Iterable[Observer] = (),
) -> Runtime:
    """Wire a runtime; no I/O. When the last client that holds it is gone, its heartbeat stops and its connections close.

    Raises TinkerError when the hosted service is meant and no credential is known.
    """
    time = clock or Clock()
    thread = loop_thread()
    auth = Auth(find_source(config), time, thread)
    watched = Observers(time, observers)
    exchanges = Transport(config, time, auth, open_engine(config, transport, time), watched)
    telemetry = Telemetry(exchanges) if config.telemetry else None
    if telemetry is not None:
        watched.add(telemetry)
    server = Server(exchanges, thread)
    session = Session(exchanges, server, thread, description, telemetry)
    runtime = Runtime(config, time, thread, exchanges, server, session, telemetry)
    weakref.finalize(runtime, _abandon, thread, exchanges, server, session).atexit = False
    return runtime


def is_of_this_process(runtime: Runtime) -> bool:
    """Whether the runtime's thread runs here; a child made by ``fork`` has its parent's objects, but not its threads."""
    return runtime.thread is loop_thread()


def _abandon(thread: LoopThread, transport: Transport, server: Server, session: Session) -> None:
    thread.call(lambda: thread.background(shut_down(transport, server, session.lively), "abandoned session"))
