"""The HTTP engine under test: requests to one server, and what came of them."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import attrs

from tinker._http.engine_http import HttpEngine
from tinker._http.messages import ExchangeFailed, PreparedRequest, RawResponse
from tinker._wire import count_nbytes

T = TypeVar("T")
GUARD_SECONDS = 60
MOMENT_SECONDS = 0.001  # in which bytes on their way to the same thread arrive


class Loop(asyncio.SelectorEventLoop):
    """The loop of an engine, whose time runs ahead of the real one by what a test skips."""

    skipped = 0.0

    def time(self) -> float:
        """Return the time at which timers are due."""
        return super().time() + self.skipped


class LoneLoop(Loop):
    """A loop whose time passes only while nothing happens, then up to the next timer: for both
    sides of a connection, and no other thread.
    """

    def __init__(self) -> None:
        super().__init__(LoneSelector(self))

    def time(self) -> float:
        """Return what was skipped, as nothing else counts."""
        return self.skipped


class LoneSelector(selectors.DefaultSelector):
    """What waits for bytes, but not for a time."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, skip the time for which the loop would wait."""
        ready = super().select(timeout and min(timeout, MOMENT_SECONDS))
        if timeout and not ready:
            self._loop.skipped += timeout
        return ready


@attrs.define
class Line:
    """An engine and the server that it is connected to, with the connections that it has had."""

    engine: HttpEngine
    url: str
    connections: Sequence[Any]

    @property
    def requests(self) -> list[Any]:
        # the server's thread adds requests meanwhile, so each dict is copied in one step
        return [one for each in self.connections for one in list(each.requests.values())]

    async def send(
        self, body: Sequence[bytes | memoryview] = (b"{}",), path: str = "/path", **how: Any
    ) -> RawResponse:
        """Send one request."""
        nbytes = count_nbytes(body)
        return await self.engine.send(
            PreparedRequest(
                method="POST", url=self.url + path, headers={}, body=body, nbytes=nbytes, **how
            )
        )

    def begin(self, *arguments: Any, **how: Any) -> asyncio.Task[RawResponse]:
        """Send one request beside what follows."""
        return asyncio.ensure_future(self.send(*arguments, **how))

    async def send_all(self, count: int, **how: Any) -> list[RawResponse | BaseException]:
        """Send several requests at the same time."""
        return await asyncio.gather(
            *(self.send(**how) for _ in range(count)), return_exceptions=True
        )

    async def skip(self, seconds: float) -> None:
        """Let the engine's time pass at once, and what is due happen. The server's does not."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        loop.skipped += seconds
        await asyncio.sleep(0)  # timers that are due run in the loop's next turn
        await asyncio.sleep(0)


def use_engine(
    serving: AbstractContextManager[Any],
    use: Callable[[Line], Awaitable[T]],
    slots: Mapping[str, int] | None = None,
) -> T:
    """Return what ``use`` returns, given an engine and a server. The engine must leave nothing
    behind.
    """

    async def scenario(server: Any) -> T:
        engine = HttpEngine(connections=slots or {"session": 10_000})
        async with asyncio.timeout(GUARD_SECONDS):
            try:
                result = await use(Line(engine, server.url, server.connections))
            finally:
                await engine.aclose()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    with serving as server, asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(scenario(server))


def statuses(answers: Sequence[RawResponse | BaseException]) -> list[Any]:
    """Return the status of each response, or its error."""
    return [answer.status if isinstance(answer, RawResponse) else answer for answer in answers]


def failure(answer: RawResponse | BaseException) -> ExchangeFailed:
    """Return a failure of an exchange, which this must be."""
    assert isinstance(answer, ExchangeFailed), answer
    return answer


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until the other side has done something."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.001)


def stream_to(
    received: list[bytes], go_on: asyncio.Event | None = None
) -> Callable[..., Awaitable[None]]:
    """Return a receiver that notes the pieces, and takes no more after the first until it may go
    on. It notes a failure too.
    """

    async def receive(_: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        try:
            async for piece in pieces:
                received.append(piece)
                if go_on is not None:
                    await go_on.wait()
        except ExchangeFailed as error:
            received.append(str(error).encode())

    return receive
