"""The parts of one service client, the one start of operations, and what the clients share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import inspect
import logging
import sys
import uuid
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from functools import cache, partial, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NoReturn,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    cast,
)

import msgspec
from tinker_wire import models
from tinker_wire.runtime import Request

from tinker._basics.checks import check_number
from tinker._basics.config import Config, check_headers, load_config
from tinker._basics.events import FutureSettled, FutureStarted, Observer, QueueObserver, Timings
from tinker._basics.lazy import shield
from tinker._futures import CURRENT_OPERATION, EventLabels, report_before_others
from tinker._http import retry
from tinker._http.auth import Auth, find_source
from tinker._http.observers import Observers, Recorder
from tinker._http.transport import Gate, Transport, open_engine
from tinker._loop import Clock, LoopThread, TaskScope, loop_thread
from tinker._session import Description, ServerSettings, Session
from tinker.errors import copy_error
from tinker.futures import APIFuture, failure_of, on_done
from tinker_records import Described

if TYPE_CHECKING:
    import httpx

    from tinker._session.telemetry import Telemetry
    from tinker.circuit_breaker import CircuitBreaker
    from tinker.usage import TokenMeter

logger = logging.getLogger("tinker")
T = TypeVar("T")

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


@shield
def open_runtime(
    config: Config,
    description: Description,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Clock | None = None,
    observers: Iterable[Observer] = (),
    gate: Gate | None = None,
) -> Runtime:
    """Create a runtime, without I/O; Ctrl-C does not interrupt it. When the last client that holds
    it is gone, its heartbeat stops and its connections close.

    Raises TinkerError when the hosted service is meant and no credential is known.
    """
    time = clock or Clock()
    thread = loop_thread()
    tasks = TaskScope(thread)
    auth = Auth(find_source(config), time, tasks)
    watched = Observers(time, observers, description.user_metadata)
    engine, dump = open_engine(config, watched, transport), open_dump(config.dump_http)
    report_before_others()  # a server in this process ends with the program
    exchanges = Transport(config, time, auth, engine, watched, tasks, gate, dump=dump)
    telemetry = _open_telemetry(exchanges, tasks) if config.telemetry else None
    server = ServerSettings(exchanges, tasks)
    session = Session(exchanges, server, tasks, description, filter(None, [telemetry]))
    runtime = Runtime(config, time, thread, tasks, exchanges, server, session, telemetry)
    end = partial(_abandon, thread, exchanges)
    weakref.finalize(runtime, end).atexit = False
    session.watch_owner(weakref.ref(runtime), end)
    return runtime


def _open_telemetry(transport: Transport, tasks: TaskScope) -> Telemetry:
    from tinker._session.telemetry import Telemetry

    return Telemetry(transport, tasks)


def open_gate(breaker: CircuitBreaker | None) -> Gate | None:
    """Return what refuses requests while a circuit is open. Raises TypeError for anything else."""
    if breaker is None:
        return None
    from tinker.circuit_breaker import registry_of

    return registry_of(breaker)


def open_dump(target: str | None) -> Recorder | None:
    """Return what writes the exchanges of one client: ``-`` is the standard error, anything else a
    file.
    """
    if target is None:
        return None
    from tinker.observing.logs import open_log

    return open_log(None if target == "-" else target)


def run(
    runtime: Runtime,
    operation: str,
    function: Callable[[APIFuture[T]], Coroutine[Any, Any, T]],
    *,
    parent: APIFuture[Any] | None = None,
    labels: EventLabels | None = None,
) -> APIFuture[T]:
    """Start an operation: run the coroutine ``function(future)`` on the loop thread, and
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
    if observers.given:
        progress.meter = _find_meter()(observers, runtime.tasks, operation, progress.labels)
    if observers.active or progress.trace_headers is not None:
        runtime.thread.start(future, partial(_run_seen, observers, future, function))
    else:
        runtime.thread.start(future, partial(function, future))
    return future


@cache
@shield
def _find_meter() -> type[TokenMeter]:
    from tinker.usage import TokenMeter

    return TokenMeter


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
    function: Callable[[APIFuture[T]], Coroutine[Any, Any, T]],
) -> T:
    """Run an operation that observers follow or that is traced."""
    CURRENT_OPERATION.set(future.progress)
    if observers.active:
        observers.notify(FutureStarted(operation=future.operation))
    return await function(future)


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


C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
R = TypeVar("R")

Twin: TypeAlias = Callable[Concatenate[C, P], Coroutine[Any, Any, R]]
_FUTURE = "APIFuture["


def twin(method: Callable[Concatenate[C, P], R]) -> Twin[C, P, R]:
    """Make the coroutine that calls ``method`` and returns what that returns."""

    async def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        # which a subclass may have replaced
        returned: R = getattr(self, method.__name__)(*args, **kwargs)
        return returned

    call.__doc__ = f"Call :meth:`{method.__name__}`; await the future that this returns."
    return _describe(call, method, inspect.signature(method))


def awaiting_twin(method: Callable[Concatenate[C, P], Awaitable[T]]) -> Twin[C, P, T]:
    """Make the coroutine that calls ``method``, awaits what that returns, and
    returns the result.
    """

    async def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await getattr(self, method.__name__)(*args, **kwargs)
        return result

    signature = inspect.signature(method)
    returned = str(signature.return_annotation)  # text, as annotations are not evaluated
    call.__doc__ = f"Await :meth:`{method.__name__}` and return its result."
    result = (
        returned.removeprefix(_FUTURE).removesuffix("]")
        if returned.startswith(_FUTURE)
        else returned
    )
    return _describe(call, method, signature.replace(return_annotation=result))


def _describe(twin: F, method: Callable[..., object], signature: inspect.Signature) -> F:
    annotations = {
        name: one.annotation for name, one in signature.parameters.items() if name != "self"
    }
    described: Any = twin
    described.__module__ = method.__module__
    described.__name__, described.__qualname__ = (
        f"{method.__name__}_async",
        f"{method.__qualname__}_async",
    )
    described.__signature__ = signature
    described.__annotations__ = {**annotations, "return": signature.return_annotation}
    return twin


_STARTS_WITHIN_SECONDS = 60.0
_INSTEAD = {
    "aclient": "connection pools are not public; use the client method that sends the request",
    "execute_with_retries": (
        "client methods retry automatically; set the time limit with "
        "ServiceClient(patience_seconds=...)"
    ),
    "aclose": "await ServiceClient.close() instead",
    "get_training_client_id": (
        "the client numbers the runs; use training.model_id for the complete id"
    ),
    "estimate_bytes_count_in_model_input": "use len(model_input) for the number of tokens",
}


class SessionHolder:
    """The session of a client, its end, and the client's I/O thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def get_session_id(self) -> str:
        """Return the id of the session. Creates the session if necessary, and blocks until it
        exists.
        """
        session = self._runtime.session
        context = run(self._runtime, "get_session_id", lambda _: session.ensure_started())
        return context.result().session_id

    @property
    def _session_id(self) -> str:
        return self.get_session_id()

    def get_telemetry(self) -> Telemetry | None:
        """Return the reporter of failures; None if telemetry is off."""
        return self._runtime.telemetry

    def close(self) -> None:
        """End the session, in the background. Later requests of its clients raise
        ClientClosedError.
        """
        run(self._runtime, "close", lambda _: self._runtime.session.close("success", None))

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the client's I/O thread. Blocking it stops every client."""
        if self._runtime.thread.is_current():
            return asyncio.get_running_loop()
        found: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._runtime.thread.call(lambda: found.set_result(asyncio.get_running_loop()))
        return found.result(_STARTS_WITHIN_SECONDS)

    def run_coroutine_threadsafe(self, coro: Coroutine[Any, Any, T]) -> APIFuture[T]:
        """Run a coroutine on the loop of :meth:`get_loop`; return a future of its result."""
        if not inspect.iscoroutine(coro):
            raise TypeError(
                f"run_coroutine_threadsafe takes a coroutine, got {type(coro).__name__}"
            )
        return run(self._runtime, "run_coroutine_threadsafe", lambda _: coro)

    def __getattr__(self, name: str) -> NoReturn:
        advice = _INSTEAD.get(name, "it is internal to the official client; use the client methods")
        raise AttributeError(f"holder has no attribute {name!r}: {advice}", name=name, obj=self)


M = TypeVar("M", bound=Callable[..., None])


def name_maker(call: str) -> Callable[[M], M]:
    """Decorate the constructor of a client that another one makes: hide its parameter, and name the
    call to write instead.
    """

    def decorate(construct: M) -> M:
        @wraps(construct)
        def construct_client(self: object, *arguments: object, **named: object) -> None:
            if named or len(arguments) != 1 or not hasattr(arguments[0], "created"):
                raise TypeError(f"use {call} to create a {type(self).__name__}")
            construct(self, *arguments)

        shown = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        cast("Any", construct_client).__signature__ = inspect.Signature([shown])
        return cast("M", construct_client)

    return decorate


class ReadyClient(Described):
    """A client that you can use at once. It wraps the future of its creation, whose result is the
    client.
    """

    # of nothing, as a client that its own future holds would not be collected when it is dropped
    _ready: APIFuture[None]

    def __await__(self) -> Generator[Any, None, Self]:
        __tracebackhide__ = True
        yield from self._ready.__await__()
        return self

    def result(self, timeout: float | None = None) -> Self:
        """Block until the client is ready.

        Args:
            timeout: The longest time to wait in seconds; None waits forever.

        Returns:
            The client itself.

        Raises:
            TimeoutError: The timeout expired; the creation continues.
            TinkerError: The error of the creation.
        """
        __tracebackhide__ = True
        self._ready.result(timeout)
        return self

    async def result_async(self, timeout: float | None = None) -> Self:
        """Await until the client is ready.

        Args:
            timeout: The longest time to wait in seconds; None waits forever.

        Returns:
            The client itself.

        Raises:
            TimeoutError: The timeout expired; the creation is cancelled.
            TinkerError: The error of the creation.
        """
        await self._ready.result_async(timeout)
        return self

    async def coroutine(self) -> Self:
        """Return a coroutine that waits for the client, for ``asyncio.create_task``."""
        return await self

    def future(self) -> APIFuture[Self]:
        """Return a future whose result is the client, for ``concurrent.futures.wait`` and similar
        functions.
        """
        future: APIFuture[Self] = APIFuture(self._ready.operation)
        # whoever receives the error of the one has received that of the other
        future.receipt = self._ready.receipt
        loop_thread().start(future, self._follow)
        return future

    async def _follow(self) -> Self:
        await self._ready.wait()
        if (error := failure_of(self._ready)) is not None:
            raise copy_error(error)
        self._ready.result(0)
        return self

    def done(self) -> bool:
        """Return whether the creation has ended, successfully or not."""
        return self._ready.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the creation has ended, and return its error.

        Args:
            timeout: The longest time to wait in seconds; None waits forever.

        Returns:
            The error; None for success.

        Raises:
            TimeoutError: The timeout expired; the creation continues.
        """
        return self._ready.exception(timeout)

    def add_done_callback(self, fn: Callable[[Self], object]) -> None:
        """Call ``fn(client)`` when the creation has ended, as :meth:`APIFuture.add_done_callback`
        does.
        """
        self._ready.add_done_callback(lambda _: fn(self))

    def observe_queue(self, observer: QueueObserver) -> None:
        """Call an observer for the creation and every request of the client, as
        :meth:`APIFuture.observe_queue` does.

        Args:
            observer: A function that takes the state and the reason, or an object with a method
                ``on_queue_state_change``.

        >>> import tinker
        >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client(
        ...     "tinker/toy"
        ... )
        >>> training.observe_queue(lambda state, reason: print(f"now {state}: {reason}"))
        """
        self._ready.observe_queue(observer)

    @property
    def queue_state(self) -> str | None:
        """Return the queue state that the server reported last for the creation; None before the
        first report.
        """
        return self._ready.queue_state

    @property
    def queue_state_reason(self) -> str | None:
        """Return the server's reason for ``queue_state``; None if the server gave no reason."""
        return self._ready.queue_state_reason

    @property
    def timings(self) -> Timings:
        """Return the times at which the creation was called, accepted, started and finished."""
        return self._ready.timings


_NO_SESSION = Description(user_metadata={})


class Rest(msgspec.Struct, eq=False):
    """Asks one server. What is under way keeps the connections open, also when its
    client is gone.
    """

    _runtime: Runtime

    @property
    def runtime(self) -> Runtime:
        """Return the connections and what goes with them; a child made by ``fork``
        makes its own.
        """
        if not is_of_this_process(self._runtime):
            before = self._runtime
            self._runtime = open_runtime(
                before.config,
                _NO_SESSION,
                clock=before.clock,
                observers=before.transport.observers.given,
            )
        return self._runtime

    def ask(self, request: Request[T]) -> APIFuture[T]:
        """Send the request; the future's result is its response. TypeError or ValueError for
        options that cannot be right.
        """
        return self.run(request.operation, partial(self.answer, request), request)

    def run(
        self,
        operation: str,
        make: Callable[[], Coroutine[Any, Any, T]],
        request: Request[Any] | None = None,
    ) -> APIFuture[T]:
        """Run the coroutine that ``make`` returns, within the options of the
        request that it sends.
        """
        if request is not None:
            _check_options(request)
        return run(self.runtime, operation, lambda _: self._await_in_time(make, request))

    async def _await_in_time(
        self, make: Callable[[], Coroutine[Any, Any, T]], request: Request[Any] | None
    ) -> T:
        if request is None or request.timeout_seconds is None:
            return await make()
        try:
            async with self.runtime.clock.deadline(request.timeout_seconds):
                return await make()
        except TimeoutError as error:
            raise self.runtime.transport.describe_timeout(request) from error

    async def answer(self, request: Request[T]) -> T:
        """Return the response, on the loop."""
        runtime = await self.ready()
        value = (
            await runtime.transport.send(request, retry.REST.within(request.timeout_seconds))
        ).value
        if isinstance(value, models.GetServerCapabilitiesResponse):
            runtime.server.note_capabilities(value)
        return value

    async def ready(self) -> Runtime:
        """Return the runtime, once it is known how the credential travels. ClientClosedError after
        the end of its service.
        """
        runtime = self.runtime
        runtime.session.check_open()
        await runtime.server.config()
        return runtime


def _check_options(request: Request[Any]) -> None:
    """Raise TypeError or ValueError for an option of the caller that cannot be right."""
    if request.timeout_seconds is not None:
        check_number("timeout", request.timeout_seconds, positive=True)
    check_headers(request.extra_headers or {})


def open_rest(
    runtime: Runtime | None,
    *,
    base_url: str | None,
    api_key: str | None,
    transport: httpx.AsyncBaseTransport | None,
    clock: Clock | None,
) -> Rest:
    """Open on a runtime that exists, else on one of its own. ValueError when both are described."""
    if runtime is None:
        # there is no session to report about
        config = load_config(base_url=base_url, api_key=api_key, telemetry=False)
        return Rest(open_runtime(config, _NO_SESSION, transport=transport, clock=clock))
    if base_url is not None or api_key is not None:
        raise ValueError(
            "base_url and api_key come from the client whose connections are used; pass neither"
        )
    return Rest(runtime)
