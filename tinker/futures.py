"""APIFuture, the result of every operation. Await it in any loop of asyncio or block on it in any
thread, repeatedly.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import numbers
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, cast

from tinker._basics.events import QueueObserver, Timings
from tinker._futures import Condition, OperationProgress, Receipt
from tinker._loop import get_waiting_loop, loop_thread, must_pass
from tinker.errors import ClientClosedError, PrecedingRequestFailed, TinkerError, copy_error
from tinker_records import Described

logger: logging.Logger = logging.getLogger("tinker")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Nobody need look at these: they follow from another failure, or from the end of the client.
_INTERNAL = frozenset(
    {"progress", "receipt", "wait", "set_result", "set_exception", "set_running_or_notify_cancel"}
)
# The states of the base class, which are read here without its lock: each is set after everything
# that belongs to it.
_CANCELLED = frozenset({"CANCELLED", "CANCELLED_AND_NOTIFIED"})
_FINISHED = "FINISHED"
_NEVER_REPORTED = (PrecedingRequestFailed, ClientClosedError, concurrent.futures.CancelledError)


class APIFuture(Described, concurrent.futures.Future[T]):
    """The result of an operation that has been submitted.

    ``await future``, in a loop of asyncio, and ``future.result(timeout)`` return the result or
    raise the operation's error. It is a ``concurrent.futures.Future``, so
    ``concurrent.futures.wait``, ``as_completed`` and callbacks work. If you cancel it, or the task
    that awaits it, the client stops waiting; a request that the server has accepted is still
    carried out and counts.

    An error counts as received when ``result`` or ``await`` has raised it, ``exception`` has
    returned it, or a callback was called with the future. An error that is never received is logged
    when the future is garbage-collected, or at exit.

    Args:
        operation: The name of the operation, used in messages and events.
    """

    def __init__(self, operation: str = "") -> None:
        super().__init__()
        self._condition: threading.Condition = Condition()
        self.operation = operation
        self.progress: OperationProgress = OperationProgress()
        self.receipt: Receipt = Receipt()
        self._thread = loop_thread()
        self._task: asyncio.Task[T] | None = None

    def _facts(self) -> dict[str, object]:
        error = self._exception
        state = (
            "cancelled"
            if self.cancelled()
            else "pending"
            if not self.done()
            else type(error).__name__
            if error
            else "done"
        )
        queue = (
            {"queue": self.queue_state, "reason": self.queue_state_reason}
            if state == "pending"
            else {}
        )
        return {
            "operation": self.operation or "without operation",
            "state": state,
            "request": self.request_id,
            **queue,
        }

    def __repr__(self) -> str:
        """Show the operation and its state."""
        facts = self._facts()
        return f"<{type(self).__name__} {facts['operation']}, {facts['state']}>"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: the result arrives in this process, so the future cannot be pickled."""
        raise TypeError("an APIFuture cannot be pickled or copied; pickle future.result() instead")

    def __getitem__(self, _: object) -> NoReturn:
        """Say that this is not the result yet; iterating ends here too."""
        raise TypeError(
            f"{self!r} cannot be indexed or iterated over: call .result() or await "
            "it for the result"
        )

    def __format__(self, spec: str) -> str:
        """Return the repr. A format such as ``.3f`` is meant for the result, so it raises
        TypeError.
        """
        if spec:
            raise TypeError(
                f"{self!r} has no format {spec!r}: call .result() or await it for the result"
            )
        return repr(self)

    def __dir__(self) -> list[str]:
        """Return the public names."""
        return [name for name in super().__dir__() if name not in _INTERNAL]

    @property
    def request_id(self) -> str | None:
        """Return the server's id of the request; None before the server accepted it."""
        return self.progress.request_id

    @property
    def queue_state(self) -> str | None:
        """Return the queue state that the server reported last.

        It is ``active``, ``paused_capacity``, ``paused_rate_limit`` or a newer state; None before
        the server reported one.
        """
        return self.progress.queue_state

    @property
    def queue_state_reason(self) -> str | None:
        """Return the server's reason for ``queue_state``; None if the server gave no reason."""
        return self.progress.queue_state_reason

    @property
    def timings(self) -> Timings:
        """Return the times at which the operation was called, accepted, started and finished."""
        return self.progress.timings

    def result(self, timeout: float | None = None) -> T:
        """Block until the result is available, and return it.

        Args:
            timeout: The longest time to wait in seconds; None waits forever.

        Returns:
            The result of the operation.

        Raises:
            TimeoutError: The timeout expired; the operation continues, and you can wait for it
                again.
            TinkerError: The error of the operation.
            CancelledError: The future was cancelled.
            RuntimeError: Called on the client's I/O thread, or in a forked child process, where
                waiting would never end.
        """
        __tracebackhide__ = True  # pytest and IPython show the line of the call only
        self._check_wait(timeout)
        try:
            return self._get_outcome(timeout)
        except TimeoutError:
            if self.done():
                raise
            raise TimeoutError(self._waiting(timeout)) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the operation has ended, and return its error.

        Args:
            timeout: The longest time to wait in seconds; None waits forever.

        Returns:
            The error; None for success.

        Raises:
            TimeoutError: The timeout expired; the operation continues.
            CancelledError: The future was cancelled.
            RuntimeError: Called on the client's I/O thread, or in a forked child process, where
                waiting would never end.
        """
        self._check_wait(timeout)
        error = super().exception(timeout)
        if error is not None:
            self.receipt.mark_received()
        return error

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call ``fn(future)`` when the future is done.

        The function runs on the client's I/O thread, or immediately if the future is done. An error
        of the future counts as received. Exceptions raised by ``fn`` are logged.

        Args:
            fn: A function that takes this future. It must not block.

        Raises:
            TypeError: ``asyncio.wait`` was called with this future, for which it would wait
                forever.
        """
        if getattr(fn, "__module__", None) == "asyncio.tasks":
            raise TypeError("asyncio.wait needs tasks: pass asyncio.ensure_future(future)")
        super().add_done_callback(partial(_call_back, fn))

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error of a future that your code created."""
        if exception is not None and not isinstance(exception, _NEVER_REPORTED):
            self.receipt.expect(self.operation, exception)
        super().set_exception(exception)

    async def result_async(self, timeout: float | None = None) -> T:
        """Await the result, and return it.

        Args:
            timeout: The longest time to wait in seconds; None waits forever.

        Returns:
            The result of the operation.

        Raises:
            TimeoutError: The timeout expired. Unlike in :meth:`result`, the future is cancelled, as
                by :meth:`cancel`.
            TinkerError: The error of the operation.
        """
        _check_timeout(timeout)
        if timeout is None:
            return await self
        try:
            async with asyncio.timeout_at(get_waiting_loop().time() + timeout):
                return await self
        except TimeoutError:
            if self.done() and not self.cancelled():
                raise
            raise TimeoutError(self._waiting(timeout)) from None

    async def coroutine(self) -> T:
        """Return a coroutine that waits for the result, for ``asyncio.create_task``."""
        return await self

    def future(self) -> APIFuture[T]:
        """Return this future. Older code uses this method to get a
        ``concurrent.futures.Future``.
        """
        return self

    def observe_queue(self, observer: QueueObserver) -> None:
        """Call an observer whenever the server reports a new state of the queue for this request.

        The observer runs on the client's I/O thread, so it must not block. Its exceptions are
        logged. If you observe a client, the observer is called for the creation of the client and
        for every request that it makes.

        Args:
            observer: A function that takes the state and the reason, or an object with a method
                ``on_queue_state_change``.

        >>> import tinker
        >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client(
        ...     "tinker/toy"
        ... )
        >>> training.observe_queue(lambda state, reason: print(f"now {state}: {reason}"))
        """
        self.progress.observers.append(
            observer if callable(observer) else observer.on_queue_state_change
        )

    def done(self) -> bool:
        """Return whether the operation has ended, or was cancelled."""
        return self._state == _FINISHED or self._state in _CANCELLED

    def cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self._state in _CANCELLED

    def cancel(self) -> bool:
        """Stop waiting.

        A request that the client has begun to send is still carried out: the gradient of a
        cancelled ``forward_backward`` is part of the next ``optim_step``. Do not repeat it.

        Returns:
            Whether the future is cancelled, whatever becomes of the request; False if it already
            has a result.
        """
        if not super().cancel():
            return False
        self._thread.call(self._cancel_task)
        return True

    async def wait(self) -> None:
        """Wait until the future has succeeded or failed. Cancelling this wait does not cancel the
        future.
        """
        if not self.done():
            self._refuse_to_wait()
            loop = get_waiting_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            super().add_done_callback(partial(_wake, loop, waiter))
            await waiter

    def __await__(self) -> Generator[Any, None, T]:
        __tracebackhide__ = True
        if not self.done():
            try:
                yield from self.wait().__await__()
            except asyncio.CancelledError:
                self.cancel()
                raise
        if self.cancelled():
            raise asyncio.CancelledError
        return self._get_outcome()

    def _get_outcome(self, timeout: float | None = 0) -> T:
        __tracebackhide__ = True
        if self._state == _FINISHED and self._exception is None:
            return cast("T", self._result)
        try:
            return super().result(timeout)
        except BaseException as error:
            if error is self._exception:
                self.receipt.mark_received()
                _hide_frames(error)
            raise

    # a type checker knows the attributes; with this method it would believe in every name
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError that explains how to get the result, which may have the
            attribute.
            """
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_"):
                operation = self.__dict__.get("operation") or "an operation"
                message += (
                    f": it is the future of {operation}; call .result() or await it "
                    "to get the result"
                )
            raise AttributeError(message, name=name, obj=self)

    def _settle(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if task.cancelled():
            self.cancel()
            return
        error = task.exception()
        if (
            isinstance(error, TinkerError)
            and error.training_run_id is None
            and self.progress.labels is not None
        ):
            error.training_run_id = self.progress.labels.training_run_id
        if error is not None and logger.isEnabledFor(logging.DEBUG):
            # with the frames, which users do not see
            logger.debug("%s failed", self.operation, exc_info=error)
        try:
            if error is None:
                self.set_result(task.result())
            else:
                if isinstance(error, TinkerError):
                    # they hold this future and its request, until garbage is collected
                    _hide_frames(error)
                self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass  # cancelled by the user while the outcome was on its way

    def _cancel_task(self) -> None:
        if self._task is not None and not self.progress.is_sending:
            self._task.cancel()

    def _refuse_to_wait(self) -> None:
        if self._thread is not loop_thread():
            what = self.operation or "this future"
            raise RuntimeError(
                f"{what}: called in the parent process, where the result arrives; wait for it there"
            )

    def _check_wait(self, timeout: float | None) -> None:
        """Raise TypeError for a timeout that is no number, and RuntimeError where waiting would
        never end.
        """
        __tracebackhide__ = True
        _check_timeout(timeout)
        if self.done():
            return
        self._refuse_to_wait()
        if self._thread.is_current():
            raise RuntimeError(
                f"{self.operation or 'this future'}: blocking here would stop all "
                "I/O; await it instead"
            )

    def _waiting(self, timeout: float | None) -> str:
        state = (
            f", request {self.request_id}"
            if self.request_id
            else ", not yet accepted by the server"
        )
        queue = f", queue state {self.queue_state}" if self.queue_state else ""
        reason = f" ({self.queue_state_reason})" if self.queue_state_reason else ""
        reachability = self.progress.reachability
        outage = (
            f"; {reachability.failure}" if reachability is not None and reachability.failure else ""
        )
        return (
            f"{self.operation or 'operation'} has no result after {timeout} "
            f"s{state}{queue}{reason}{outage}"
        )


def _hide_frames(error: BaseException) -> None:
    """Drop the frames of the loop thread from an error of this package, and from those that it
    comes from.

    Another error keeps those behind the last one that hides itself, such as the call of a custom
    loss.
    """
    if isinstance(error, TinkerError):
        error.__traceback__ = None
        for source in (error.__cause__, error.__context__):
            if source is not None and type(source).__module__.partition(".")[0] == "tinker":
                source.__traceback__ = None
        return
    frame = error.__traceback__
    while frame is not None:
        if "__tracebackhide__" in frame.tb_frame.f_code.co_varnames:
            error.__traceback__ = frame.tb_next
        frame = frame.tb_next


def failure_of(future: APIFuture[Any]) -> BaseException | None:
    """Return the error of a failed future without marking it as received."""
    return future._exception  # pyright: ignore[reportPrivateUsage]


def on_done(future: APIFuture[T], function: Callable[[APIFuture[T]], object]) -> None:
    """Call ``function(future)`` when the future is done. Unlike a user's callback, this does not
    mark an error as received.
    """
    concurrent.futures.Future[T].add_done_callback(
        future, cast("Callable[[concurrent.futures.Future[T]], object]", function)
    )


def immediate(value: T, operation: str = "") -> APIFuture[T]:
    """Return a future that already has its result."""
    future: APIFuture[T] = APIFuture(operation)
    future.set_result(value)
    return future


async def wait_before(earlier: APIFuture[Any], future: APIFuture[Any]) -> None:
    """Wait for an earlier operation that the operation of ``future`` needs; cancelling ``future``
    does not cancel ``earlier``.

    A failure of ``earlier`` fails the operation with the same error, and is received with it.
    """
    await earlier.wait()
    if earlier.cancelled():
        raise concurrent.futures.CancelledError(f"{earlier.operation} was cancelled")
    if (error := failure_of(earlier)) is not None:
        future.receipt.share(earlier.receipt.mark_received)
        raise copy_error(error)  # each waiter's own, as a traceback grows with every raise


async def take_over(future: APIFuture[T]) -> T:
    """Return the result of a future that this package created. Cancelling this wait cancels the
    future.

    An error is passed on, but does not count as received.
    """
    try:
        await future.wait()
    except asyncio.CancelledError:
        future.cancel()
        raise
    if future.cancelled():
        raise asyncio.CancelledError
    if (error := failure_of(future)) is not None:
        future.receipt.mark_delegated()
        raise copy_error(error)
    return future.result(0)


def _call_back(fn: Callable[[Any], object], future: Any) -> None:
    if failure_of(future) is not None:
        future.receipt.mark_received()
    try:
        fn(future)
    except BaseException as error:
        if must_pass(error):
            raise
        logger.exception("a done callback of %s failed", future.operation or "a future")


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None], _: object) -> None:
    try:
        loop.call_soon_threadsafe(_set_waiter, waiter)
    except RuntimeError:
        pass  # the awaiting loop is closed; nobody waits any more


def _set_waiter(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _check_timeout(timeout: float | None) -> None:
    """Raise TypeError unless the timeout is a number of seconds, of Python or numpy, or None."""
    if timeout is not None and not isinstance(timeout, numbers.Real):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"timeout must be a number of seconds or None, got {timeout!r}")
