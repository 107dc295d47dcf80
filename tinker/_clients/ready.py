"""Clients that can be used at once, before the server has created their object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tinker._loop import loop_thread
from tinker.errors import copy_error
from tinker.futures import APIFuture, failure_of
from tinker.observing import QueueObserver, Timings
from tinker_records import Described

if TYPE_CHECKING:
    from typing import Self

F = TypeVar("F", bound=Callable[..., None])


def name_maker(call: str) -> Callable[[F], F]:
    """Decorate the constructor of a client that another one makes: hide its parameter, and name the
    call to write instead.
    """

    def decorate(construct: F) -> F:
        @wraps(construct)
        def construct_client(self: object, *arguments: object, **named: object) -> None:
            if named or len(arguments) != 1 or not hasattr(arguments[0], "created"):
                raise TypeError(f"use {call} to create a {type(self).__name__}")
            construct(self, *arguments)

        shown = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        cast("Any", construct_client).__signature__ = inspect.Signature([shown])
        return cast("F", construct_client)

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
