"""Servers that stop in the middle of an exchange, on real sockets: while a request or a response is
sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import httpx
import pytest
from support.engine import LoneLoop

from tinker._basics.config import CONNECTIONS
from tinker._http import engine_httpx, messages
from tinker._http.engine_http import HttpEngine
from tinker._http.engine_httpx import HttpxEngine
from tinker._http.messages import ExchangeFailed, PreparedRequest, Purpose

Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
T = TypeVar("T")
SHORT = 0.2


def run(scenario: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=LoneLoop) as runner:
        return runner.run(scenario)


def give_answers(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let an answer that has begun take so long."""
    for module in (engine_httpx, messages):
        monkeypatch.setattr(module, "ANSWER_SECONDS", seconds)


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience of a fraction of a second: of the loop's time, as these are real sockets."""
    monkeypatch.setattr(Purpose, "read_seconds", property(lambda _: SHORT))
    give_answers(monkeypatch, SHORT)


def exchange(behave: Behave, nbytes: int) -> None:
    """Upload once to a server with this behaviour, and raise what the exchange raises."""

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
        call = PreparedRequest(
            method="POST",
            url=url,
            headers={"Content-Length": str(nbytes)},
            body=body,
            nbytes=sum(map(len, body)),
            purpose=Purpose.UPLOAD,
            silence_seconds=Purpose.UPLOAD.read_seconds,
        )
        client = HttpEngine()
        try:
            await asyncio.wait_for(client.send(call), 60)
        finally:
            over.set()
            await client.aclose()
            await gone.wait()
            server.close()

    run(scenario())


async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def read_and_say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        pass


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(SHORT / 20)


async def trickle_the_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)
    reading = asyncio.ensure_future(read_and_say_nothing(reader, writer))
    writer.write(b"HTTP/1.1 200 OK\r\nx-a: ")
    try:
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(SHORT / 20)
    finally:
        reading.cancel()


async def go_on_processing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)
    reading = asyncio.ensure_future(read_and_say_nothing(reader, writer))
    try:
        while True:
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(SHORT / 20)
    finally:
        reading.cancel()


async def stop_in_the_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n ")
    await read_and_say_nothing(reader, writer)


NO_ANSWER, TOO_SLOW, STOPPED = (
    r"no response within 0\.2 s",
    r"was not complete after 0\.2 s",
    r"nothing more arrived for 0\.2 s",
)


@pytest.mark.parametrize("nbytes", [100, 1 << 20, 64 << 20])
@pytest.mark.parametrize(
    ("behave", "says"),
    [
        (read_nothing, NO_ANSWER),
        (read_and_say_nothing, NO_ANSWER),
        (trickle_the_head, NO_ANSWER),
        (go_on_processing, NO_ANSWER),
        (trickle, TOO_SLOW),
    ],
)
def test_every_stall_ends(behave: Behave, says: str, nbytes: int) -> None:
    """Whatever the server stops doing, or never stops, and however large the request, the exchange
    ends as timed out.
    """
    with pytest.raises(ExchangeFailed, match=says) as caught:
        exchange(behave, nbytes)
    assert caught.value.timed_out


def test_a_body_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says nothing more in the middle of an answer is not waited for as long as one
    that trickles.
    """
    give_answers(monkeypatch, 60.0)
    with pytest.raises(ExchangeFailed, match=STOPPED) as caught:
        exchange(stop_in_the_body, 100)
    assert caught.value.timed_out


def test_waiting_for_a_connection_is_not_waiting_for_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind as many exchanges as there may be connections another one waits, and has its full time
    after that.
    """
    give_answers(monkeypatch, 60.0)
    monkeypatch.setattr(Purpose, "read_seconds", property(lambda _: 2 * SHORT))

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n")
            for _ in range(8):
                await asyncio.sleep(SHORT / 2)
                writer.write(b" ")

    async def scenario() -> list[int]:
        server = await asyncio.start_server(slowly, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        client = HttpEngine(connections=dict.fromkeys(CONNECTIONS, 1))
        answers = await asyncio.gather(
            *(client.send(PreparedRequest(method="GET", url=url, headers={})) for _ in range(3))
        )
        await client.aclose()
        server.close()
        return [answer.status for answer in answers]

    assert run(scenario()) == [200, 200, 200]


def test_a_transport_that_trickles_ends_too() -> None:
    """An httpx transport of the user's, which may know no time-outs, gets no more time than a
    connection of ours.
    """

    class Trickling(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b" "
                await asyncio.sleep(SHORT / 20)

    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Trickling()))
    with pytest.raises(ExchangeFailed) as caught:
        run(
            HttpxEngine(transport).send(
                PreparedRequest(
                    method="GET", url="http://server/", headers={}, silence_seconds=SHORT
                )
            )
        )
    assert caught.value.timed_out


def test_answers_of_a_transport_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is longer than any answer may be is refused, also where the transport is the
    user's.
    """

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield bytes(100)

    monkeypatch.setattr(messages, "MAX_ANSWER_NBYTES", 1000)
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Endless()))
    with pytest.raises(ExchangeFailed, match="larger than"):
        run(
            HttpxEngine(transport).send(
                PreparedRequest(method="GET", url="http://server/", headers={})
            )
        )


async def refuse_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()
    await read_and_say_nothing(reader, writer)


def test_an_answer_may_come_before_the_request_is_sent() -> None:
    """A server that refuses a large request while it is being sent is heard."""
    exchange(refuse_early, 64 << 20)
