"""The parts of one service client in one frozen value, and the one start of every operation.

The value has no methods: what to do is in the clients.
"""

from __future__ import annotations

import importlib
import logging
import sys
import uuid
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import msgspec

from tinker._clock import Clock
from tinker._config import Config
from tinker._futures import CURRENT_OPERATION, EventLabels, report_before_others
from tinker._http import Auth, CircuitRegistry, Observers, Transport, find_source, open_engine
from tinker._loop import LoopThread, TaskScope, loop_thread
from tinker._session import Description, ServerSettings, Session, Telemetry
from tinker.futures import APIFuture, failure_of, on_done
from tinker.observing import ExchangeSink, FutureSettled, FutureStarted, Observer, open_log

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger("tinker")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# A program that has not imported this has no span, so it is not imported for that.
_TRACING_MODULE = "opentelemetry.trace"


class Runtime(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """What the clients of one session share."""

    config: Config
    clock: Clock
    thread: LoopThread
    tasks: TaskScope
    transport: Transport
    server: ServerSettings
    session: Session
    telemetry: Telemetry | None
    # by which this process finds it again
    token: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)


def open_runtime(
    config: Config,
    description: Description,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    observers: Iterable[Observer] = (),
    registry: CircuitRegistry | None = None,
) -> Runtime:
    """Create a runtime, without I/O. When the last client that holds it is gone, its heartbeat
    stops and its connections close.

    Raises TinkerError when the hosted service is meant and no credential is known.
    """
    time = clock or Clock()
    thread = loop_thread()
    tasks = TaskScope(thread)
    auth = Auth(find_source(config), time, tasks)
    watched = Observers(time, observers, description.user_metadata)
    engine, dump = open_engine(config, watched, transport), open_dump(config.dump_http)
    report_before_others()  # a server in this process ends with the program
    exchanges = Transport(config, time, auth, engine, watched, tasks, registry, dump=dump)
    telemetry = Telemetry(exchanges, tasks) if config.telemetry else None
    if telemetry is not None:
        watched.add_own(telemetry)
    server = ServerSettings(exchanges, tasks)
    session = Session(exchanges, server, tasks, description, telemetry)
    runtime = Runtime(config, time, thread, tasks, exchanges, server, session, telemetry)
    end = partial(_abandon, thread, exchanges)
    weakref.finalize(runtime, end).atexit = False
    session.watch_owner(weakref.ref(runtime), end)
    return runtime


def open_dump(target: str | None) -> ExchangeSink | None:
    """Return where the exchanges of one client are written: ``-`` is the standard error, anything
    else a file.
    """
    return None if target is None else open_log(None if target == "-" else target).sink


def run(
    runtime: Runtime,
    operation: str,
    function: Callable[[APIFuture[T], *Ts], Coroutine[Any, Any, T]],
    *args: *Ts,
    parent: APIFuture[Any] | None = None,
    labels: EventLabels | None = None,
) -> APIFuture[T]:
    """Start an operation: run the coroutine ``function(future, *args)`` on the loop thread, and
    return that future at once.

    Operations start in the order of the calls. The observers of the runtime are notified of start
    and outcome. Those that observe the queue of ``parent``, the creation of a client, observe this
    request's too, which has the same labels.

    Raises RuntimeError in a child made by ``fork``, where the runtime's thread does not run.
    """
    future: APIFuture[T] = APIFuture(operation)
    if future._thread is not runtime.thread:  # pyright: ignore[reportPrivateUsage]
        raise RuntimeError(
            f"{operation}: this client belongs to the parent process; create a "
            "client in this process"
        )
    progress, observers = future.progress, runtime.transport.observers
    progress.queued = runtime.clock.monotonic()
    progress.labels, progress.reachability = labels, runtime.transport.reachability
    if parent is not None:
        progress.observers, progress.labels = parent.progress.observers, parent.progress.labels
    if runtime.config.trace_context and _TRACING_MODULE in sys.modules:
        progress.trace_headers = _read_trace_headers()
    if observers.active:
        on_done(future, partial(_report_outcome, observers))
    if observers.active or progress.trace_headers is not None:
        runtime.thread.start(future, _run_seen, observers, future, function, *args)
    else:
        runtime.thread.start(future, function, future, *args)
    return future


def _read_trace_headers() -> Mapping[str, str] | None:
    """Return the headers of W3C Trace Context for the caller's OpenTelemetry span; None without
    one.
    """
    headers: dict[str, str] = {}
    try:
        tracecontext: Any = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        tracecontext.TraceContextTextMapPropagator().inject(headers)
    except Exception as error:  # noqa: BLE001 - a program whose tracing is broken still trains
        logger.debug("no trace context: %s", error)
    return headers or None


async def _run_seen(
    observers: Observers,
    future: APIFuture[T],
    function: Callable[[APIFuture[T], *Ts], Coroutine[Any, Any, T]],
    *args: *Ts,
) -> T:
    """Run an operation that observers follow or that is traced."""
    CURRENT_OPERATION.set(future.progress)
    if observers.active:
        observers.notify(FutureStarted(operation=future.operation))
    return await function(future, *args)


def _report_outcome(observers: Observers, future: APIFuture[Any]) -> None:
    queued = future.progress.queued
    assert queued is not None
    observers.notify(
        FutureSettled(
            operation=future.operation,
            request_id=future.request_id,
            seconds=observers.clock.monotonic() - queued,
            timings=future.timings,
            error=failure_of(future),
            cancelled=future.cancelled(),
        ),
        future.progress,
    )


def is_of_this_process(runtime: Runtime) -> bool:
    """Return whether the runtime's thread runs in this process: a forked child has its parent's
    objects, not its threads.
    """
    return runtime.thread is loop_thread()


def log_unfinished(runtime: Runtime) -> None:
    """Log the unfinished operations of the runtime, as it is closed."""
    reachability = runtime.transport.reachability
    runtime.thread.log_unfinished(
        "when the client was closed",
        lambda owner: isinstance(owner, APIFuture) and owner.progress.reachability is reachability,
    )


def _abandon(thread: LoopThread, transport: Transport) -> None:
    thread.call(lambda: thread.background(transport.close(), "abandoned session"))
