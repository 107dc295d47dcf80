"""APIFuture: the only future type. Awaitable from any loop and blockable from any thread, any number of times."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import weakref
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tinker._loop import LoopThread, loop_thread, must_pass
from tinker._validate import check_timeout
from tinker.errors import ClientClosedError, PrecedingRequestFailed, copy_error
from tinker.observing import QueueCallback, QueueObserver, Timings

logger: logging.Logger = logging.getLogger("tinker")
T = TypeVar("T")

# Nobody need look at these: they follow from another failure, or from the end of the client.
_NEVER_REPORTED = (PrecedingRequestFailed, ClientClosedError, concurrent.futures.CancelledError)


class APIFuture(concurrent.futures.Future[T]):
    """The result of an operation, which was submitted when the method returned this future.

    ``await future`` and ``future.result(timeout)`` give the result or raise the operation's error. It is a
    ``concurrent.futures.Future``, so ``concurrent.futures.wait``, ``as_completed`` and callbacks work. Cancelling it, or the
    task that awaits it, stops the waiting; what the server has accepted stays accepted.

    An error counts as received when ``result`` or ``await`` raised it, ``exception`` returned it, or a callback was given the
    future. One that is never received is logged when the future is collected, or at exit.

    ``queue_state`` (``active``, ``paused_capacity``, ``paused_rate_limit``, or what servers of tomorrow say) and
    ``queue_state_reason`` are what the server last said about it, None before it said anything; ``timings`` says when it was
    called, accepted, at work and here.
    """

    def __init__(self, operation: str = "") -> None:
        super().__init__()
        self.operation = operation
        self.request_id: str | None = None
        self.queue_state: str | None = None
        self.queue_state_reason: str | None = None
        self.timings: Timings = Timings()
        self._queue_observers: list[QueueCallback] = []
        self._unseen: _Unseen | None = None
        self._on_received: tuple[Callable[[], object], ...] = ()
        self._loop = loop_thread()
        self._task: asyncio.Task[T] | None = None

    def result(self, timeout: float | None = None) -> T:
        """Block until the result is there, at most ``timeout`` seconds (None: no limit).

        Raises TimeoutError when time is up; the operation goes on and can be waited for again. RuntimeError on the loop
        thread of this package, where blocking would never end.
        """
        check_timeout(timeout)
        if not self.done():
            self._refuse_to_block()
        try:
            return self._finished(timeout)
        except TimeoutError:
            if self.done():
                raise
            raise TimeoutError(self._waiting(timeout)) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As :meth:`result`, giving the error instead of raising it, None for success."""
        check_timeout(timeout)
        if not self.done():
            self._refuse_to_block()
        error = super().exception(timeout)
        if error is not None:
            self._mark_received()
        return error

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Have ``fn(future)`` called when the future is done, on the thread that does all I/O, or at once if it is done.

        An error of the future is received with that. What ``fn`` raises is logged.
        """
        super().add_done_callback(partial(_call_back, fn))

    def set_exception(self, exception: BaseException | None) -> None:
        """Fail the future; for code that makes futures of its own."""
        if exception is not None and not isinstance(exception, _NEVER_REPORTED):
            self._unseen = _Unseen(self.operation, exception)
        super().set_exception(exception)

    async def result_async(self, timeout: float | None = None) -> T:
        """Await the result, at most ``timeout`` seconds; TimeoutError then, and the operation is cancelled."""
        check_timeout(timeout)
        if timeout is None:
            return await self
        try:
            async with asyncio.timeout(timeout):
                return await self
        except TimeoutError:
            if self.done() and not self.cancelled():
                raise
            raise TimeoutError(self._waiting(timeout)) from None

    async def coroutine(self) -> T:
        """The wait as a coroutine, for ``asyncio.create_task``."""
        return await self

    def future(self) -> APIFuture[T]:
        """This future; older code asks for the ``concurrent.futures.Future`` inside."""
        return self

    def observe_queue(self, observer: QueueObserver) -> None:
        """Have ``observer(queue_state, reason)`` called whenever the server says something new about what this waits for.

        ``observer`` is a function or an object with the method ``on_queue_state_change``. It is called on the thread that
        does all I/O, so it must not block; what it raises is logged. On a client it is about its creation and every request
        that it makes.

        >>> import tinker
        >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client("tinker/toy")
        >>> training.observe_queue(lambda state, reason: print(f"now {state}: {reason}"))
        """
        self._queue_observers.append(observer if callable(observer) else observer.on_queue_state_change)

    def cancel(self) -> bool:
        """Stop waiting; False when there is a result already."""
        if not super().cancel():
            return False
        self._loop.call(self._cancel_task)
        return True

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            self._refuse_to_wait()
            yield from self._sleep_until_done().__await__()
        if self.cancelled():
            raise asyncio.CancelledError
        return self._finished()

    async def _sleep_until_done(self) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        super().add_done_callback(lambda _: _wake(loop, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _finished(self, timeout: float | None = 0) -> T:
        try:
            return super().result(timeout)
        except BaseException as error:
            if error is self._exception:
                self._mark_received()
            raise

    def _mark_received(self) -> None:
        if self._unseen is not None:
            self._unseen.dismiss()
        for function in self._on_received:
            function()

    if not TYPE_CHECKING:  # a type checker knows the attributes; with this method it would believe in every name

        def __getattr__(self, name: str) -> Any:
            """Say of a name that only the result can have how to get the result."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and not isinstance(self, SelfFuture):
                operation = self.__dict__.get("operation") or "an operation"
                message += f": it is the future of {operation}; call .result() or await it for the result"
            raise AttributeError(message, name=name, obj=self)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _refuse_to_wait(self) -> None:
        if self._loop is not loop_thread():
            what = self.operation or "this future"
            raise RuntimeError(f"{what}: called in the parent of this process, where the result arrives; wait for it there")

    def _refuse_to_block(self) -> None:
        self._refuse_to_wait()
        if self._loop.is_current():
            raise RuntimeError(f"{self.operation or 'this future'}: blocking here would stop all I/O; await it instead")

    def _waiting(self, timeout: float | None) -> str:
        state = f", request {self.request_id}" if self.request_id else ", not yet accepted by the server"
        queue = f", queue state {self.queue_state}" if self.queue_state else ""
        reason = f" ({self.queue_state_reason})" if self.queue_state_reason else ""
        return f"{self.operation or 'operation'} has no result after {timeout} s{state}{queue}{reason}"


class _Unseen:
    """A failure that nobody has looked at yet; says so in the log, once, when it is collected or at exit."""

    def __init__(self, operation: str, error: BaseException) -> None:
        self._operation = operation or "an operation"
        self._text: str | None = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
        _all_unseen.add(self)

    def dismiss(self) -> None:
        self._text = None

    def report(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            logger.error("%s failed, and its error was never looked at: %s", self._operation, text)

    def __del__(self) -> None:
        self.report()


_all_unseen: weakref.WeakSet[_Unseen] = weakref.WeakSet()


@atexit.register
def _report_all_unseen() -> None:
    for unseen in tuple(_all_unseen):
        unseen.report()


def failure_of(future: APIFuture[Any]) -> BaseException | None:
    """The error of a future that failed. Nobody receives it by this."""
    return future._exception  # pyright: ignore[reportPrivateUsage]


def mark_received(future: APIFuture[Any]) -> None:
    """The user has the error of this future, if only that of one that failed because of it."""
    future._mark_received()  # pyright: ignore[reportPrivateUsage]


def on_received(future: APIFuture[Any], function: Callable[[], object]) -> None:
    """Have ``function()`` called when the user receives the future's error; call this before it is settled."""
    future._on_received += (function,)  # pyright: ignore[reportPrivateUsage]


def on_done(future: APIFuture[T], function: Callable[[concurrent.futures.Future[T]], object]) -> None:
    """Have ``function(future)`` called when the future is done; unlike a user's callback it does not receive an error."""
    concurrent.futures.Future[T].add_done_callback(future, function)


async def quiet_result(future: APIFuture[T]) -> T:
    """Await a future of this package's own, whose error is passed on; mark it as received when the user has that."""
    if not future.done():
        await future._sleep_until_done()  # pyright: ignore[reportPrivateUsage]
    if future.cancelled():
        raise asyncio.CancelledError
    if (error := failure_of(future)) is not None:
        if future._unseen is not None:  # pyright: ignore[reportPrivateUsage]
            future._unseen.dismiss()  # pyright: ignore[reportPrivateUsage]
        raise copy_error(error)
    return future.result(0)


def note_submitted(future: APIFuture[Any], request_id: str, now: float) -> None:
    """The server accepted a request of this future."""
    future.request_id = request_id
    if future.timings.submitted is None:
        future.timings = future.timings._replace(submitted=now)


def note_running(future: APIFuture[Any], now: float) -> None:
    """The server says that it is at work."""
    if future.timings.running is None:
        future.timings = future.timings._replace(running=now)


def note_fetched(future: APIFuture[Any], now: float) -> None:
    """A result of this future is here."""
    future.timings = future.timings._replace(fetched=now)


def note_queue(future: APIFuture[Any], state: str, reason: str | None) -> bool:
    """What the server says of the queue; whether that is new. Tells those who observe."""
    if (state, reason) == (future.queue_state, future.queue_state_reason):
        return False
    future.queue_state, future.queue_state_reason = state, reason
    for observer in tuple(future._queue_observers):  # pyright: ignore[reportPrivateUsage]
        try:
            observer(state, reason)
        except BaseException as error:
            if must_pass(error):
                raise
            logger.exception("an observer of the queue failed")
    return True


def start(future: APIFuture[T], make: Callable[[], Coroutine[Any, Any, T]], thread: LoopThread | None = None) -> APIFuture[T]:
    """Run the coroutine that ``make`` returns as a task of the loop thread; its outcome becomes the future's."""
    loop = thread or loop_thread()
    loop.call(partial(_begin, loop, future, make))
    return future


def _begin(loop: LoopThread, future: APIFuture[T], make: Callable[[], Coroutine[Any, Any, T]]) -> None:
    if future.cancelled():
        return
    task: asyncio.Task[T] = loop.task(make(), name=future.operation)
    future._task = task  # pyright: ignore[reportPrivateUsage]
    task.add_done_callback(partial(_settle, future))


def _settle(future: APIFuture[T], task: asyncio.Task[T]) -> None:
    future._task = None  # pyright: ignore[reportPrivateUsage]
    if task.cancelled():
        future.cancel()
        return
    error = task.exception()
    try:
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(error)
    except concurrent.futures.InvalidStateError:
        pass  # cancelled by the user while the outcome was on its way


def _call_back(fn: Callable[[Any], object], future: Any) -> None:
    if failure_of(future) is not None:
        mark_received(future)
    try:
        fn(future)
    except BaseException as error:
        if must_pass(error):
            raise
        logger.exception("a done callback of %s failed", future.operation or "a future")


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_set_waiter, waiter)
    except RuntimeError:
        pass  # the awaiting loop is closed; nobody waits any more


def _set_waiter(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


C = TypeVar("C", bound="SelfFuture")


class SelfFuture(APIFuture[Any]):
    """A client that is the future of its own creation: its result is the client itself, ready."""

    def _child(self, future: APIFuture[T]) -> APIFuture[T]:
        """The future of a request of this client: who observes the queue of the one observes that of the other."""
        future._queue_observers = self._queue_observers
        return future

    def result(self: C, timeout: float | None = None) -> C:
        """Block until the client is ready, at most ``timeout`` seconds; the client itself, or the creation's error."""
        super().result(timeout)
        return self

    async def result_async(self: C, timeout: float | None = None) -> C:
        """Await until the client is ready; the client itself, or the creation's error."""
        await super().result_async(timeout)
        return self

    def __await__(self: C) -> Generator[Any, None, C]:
        yield from super().__await__()
        return self

    async def coroutine(self: C) -> C:
        """The wait as a coroutine."""
        await super().coroutine()
        return self


async def ready(client: SelfFuture, future: APIFuture[Any]) -> None:
    """Wait for a client, for the operation of ``future``; when that is cancelled, the creation is not.

    A failed creation fails the operation with the same error, and is received with it.
    """
    if not client.done():
        await asyncio.shield(client._sleep_until_done())  # pyright: ignore[reportPrivateUsage]
    if client.cancelled():
        raise concurrent.futures.CancelledError(f"{client.operation} was cancelled")
    if (error := failure_of(client)) is not None:
        on_received(future, partial(mark_received, client))
        raise copy_error(error)  # each waiter's own, as a traceback grows with every raise


class AwaitableConcurrentFuture(APIFuture[T]):
    """An APIFuture that follows a ``concurrent.futures.Future``; for code and tests that make futures of their own.

    >>> source: concurrent.futures.Future[int] = concurrent.futures.Future()
    >>> source.set_result(7)
    >>> AwaitableConcurrentFuture(source).result()
    7
    """

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        super().__init__()
        self._future = future
        mapped(future, self, lambda value: value)

    def future(self) -> concurrent.futures.Future[T]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        """The future that was given."""
        return self._future

    def cancel(self) -> bool:
        """Cancel the future that was given."""
        return self._future.cancel()


def completed(value: T, operation: str = "") -> APIFuture[T]:
    """A future that has its result already."""
    future: APIFuture[T] = APIFuture(operation)
    future.set_result(value)
    return future


def mapped(source: concurrent.futures.Future[Any], future: APIFuture[T], convert: Callable[[Any], T]) -> APIFuture[T]:
    """``future`` follows ``source``, with its result converted; cancelling it cancels the source."""

    def follow(done: concurrent.futures.Future[Any]) -> None:
        if done.cancelled():
            concurrent.futures.Future[T].cancel(future)
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(convert(done.result()))

    source.add_done_callback(follow)
    return future
