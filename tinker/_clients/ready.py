"""A client that may be used at once and is ready when the server has made what it stands for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from tinker.errors import copy_error
from tinker.futures import APIFuture, failure_of, start
from tinker.observing import QueueObserver, Timings

if TYPE_CHECKING:
    from typing import Self


class ReadyClient:
    """A client with a future of its creation, whose result is the client itself."""

    _ready: APIFuture[None]  # of nothing, as a client that its own future holds would not be collected when it is dropped

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._ready.__await__()
        return self

    def result(self, timeout: float | None = None) -> Self:
        """Block until the client is ready, at most ``timeout`` seconds; the client itself, or the creation's error."""
        self._ready.result(timeout)
        return self

    async def result_async(self, timeout: float | None = None) -> Self:
        """Await until the client is ready; the client itself, or the creation's error."""
        await self._ready.result_async(timeout)
        return self

    async def coroutine(self) -> Self:
        """The wait as a coroutine, for ``asyncio.create_task``."""
        return await self

    def future(self) -> APIFuture[Self]:
        """A future whose result is the client; for ``concurrent.futures.wait`` and code that asks for one."""
        future: APIFuture[Self] = APIFuture(self._ready.operation)
        future.receipt = self._ready.receipt  # whoever receives the error of the one has received that of the other
        return start(future, self._follow)

    async def _follow(self) -> Self:
        await self._ready.wait()
        if (error := failure_of(self._ready)) is not None:
            raise copy_error(error)
        self._ready.result(0)
        return self

    def done(self) -> bool:
        """Whether the creation has ended, in whatever way."""
        return self._ready.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until the creation has ended, at most ``timeout`` seconds; its error, None for success."""
        return self._ready.exception(timeout)

    def add_done_callback(self, fn: Callable[[Self], object]) -> None:
        """Have ``fn(client)`` called when the creation has ended, as :meth:`APIFuture.add_done_callback` does."""
        self._ready.add_done_callback(lambda _: fn(self))

    def observe_queue(self, observer: QueueObserver) -> None:
        """As :meth:`APIFuture.observe_queue`, about the creation and every request that the client makes.

        >>> import tinker
        >>> training = tinker.ServiceClient(base_url="local://toy").create_lora_training_client("tinker/toy")
        >>> training.observe_queue(lambda state, reason: print(f"now {state}: {reason}"))
        """
        self._ready.observe_queue(observer)

    @property
    def queue_state(self) -> str | None:
        """What the server last said about the queue for the creation, None before it said anything."""
        return self._ready.queue_state

    @property
    def queue_state_reason(self) -> str | None:
        """The reason that the server gave for ``queue_state``, None where it gave none."""
        return self._ready.queue_state_reason

    @property
    def timings(self) -> Timings:
        """When the creation was called, accepted, at work and here."""
        return self._ready.timings
