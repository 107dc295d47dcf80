"""Servers that stop in the middle of an exchange, on real sockets: reading no more of a request, or sending an answer without end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx
import pytest

from tinker import _pools
from tinker._pools import AiohttpExchange, Call, ExchangeFailed, HttpxExchange, Purpose

Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SHORT = 0.2


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Patience of a fraction of a second, as these are real sockets."""
    monkeypatch.setattr(Purpose, "read_seconds", property(lambda _: SHORT))
    monkeypatch.setattr(_pools, "ANSWER_SECONDS", SHORT)
    _pools._timeout.cache_clear()
    yield
    _pools._timeout.cache_clear()


def exchange(behave: Behave, nbytes: int) -> None:
    """One upload to a server that behaves like this; ends with what the exchange raises."""

    async def scenario() -> None:
        over, gone = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            behaving = asyncio.ensure_future(behave(reader, writer))
            await over.wait()
            behaving.cancel()
            await asyncio.gather(behaving, return_exceptions=True)
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            gone.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 16)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        body = tuple(bytes(min(1 << 20, nbytes)) for _ in range(-(-nbytes // (1 << 20))))
        call = Call(method="POST", url=url, headers={"Content-Length": str(nbytes)}, body=body, purpose=Purpose.UPLOAD)
        client = AiohttpExchange()
        try:
            await asyncio.wait_for(client(call), 60)
        finally:
            over.set()
            await client.aclose()
            await gone.wait()
            server.close()

    asyncio.run(scenario())


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def read_and_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        pass


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(SHORT / 20)


@pytest.mark.parametrize("nbytes", [100, 1 << 20, 64 << 20])
@pytest.mark.parametrize("behave", [read_nothing, read_and_say_nothing, trickle])
def test_every_stall_ends(behave: Behave, nbytes: int) -> None:
    """Whatever the server stops doing, and however large the request, the exchange ends as timed out."""
    with pytest.raises(ExchangeFailed) as caught:
        exchange(behave, nbytes)
    assert caught.value.timed_out


def test_a_transport_that_trickles_ends_too() -> None:
    """An httpx transport of the user's, which may know no time-outs, gets no more time than a connection of ours."""

    class Trickling(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(SHORT / 20)

    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Trickling()))
    with pytest.raises(ExchangeFailed) as caught:
        asyncio.run(HttpxExchange(transport)(Call(method="GET", url="http://server/", headers={})))
    assert caught.value.timed_out


def test_answers_of_a_transport_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is longer than any answer may be is refused, also where the transport is the user's."""

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield bytes(100)

    monkeypatch.setattr(_pools, "MAX_ANSWER_NBYTES", 1000)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Endless()))
    with pytest.raises(ExchangeFailed, match="larger than"):
        asyncio.run(HttpxExchange(transport)(Call(method="GET", url="http://server/", headers={})))


async def refuse_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()
    await read_and_say_nothing(reader, writer)


def test_an_answer_may_come_before_the_request_is_sent() -> None:
    """A server that refuses a large request while it is being sent is heard."""
    exchange(refuse_early, 64 << 20)
