"""The httpx engine: how it sends bodies."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Mapping

import httpx
from tinker_wire.runtime import FormPieces, Stored

from tinker._http.engine_httpx import HttpxEngine
from tinker._http.messages import PreparedRequest


class CountedFile(io.BytesIO):
    """A file that counts how often it is read."""

    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        return super().read(size)


class Receiver(httpx.AsyncBaseTransport):
    """A receiver that records the length of each piece, and how often the file was read by then."""

    def __init__(self, file: CountedFile) -> None:
        self.file = file
        self.pieces: list[tuple[int, int]] = []
        self.announced = ""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.announced = request.headers["content-length"]
        async for piece in request.stream:
            self.pieces.append((len(piece), self.file.reads))
        return httpx.Response(200)


class Endless(httpx.AsyncByteStream):
    """A body without an end; ``is_closed`` when nobody reads it any longer."""

    is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b"piece"

    async def aclose(self) -> None:
        self.is_closed = True


def test_a_receiver_that_has_enough_ends_the_response() -> None:
    """What a receiver does not read is not kept open."""
    body = Endless()

    async def take_one(_: Mapping[str, str], pieces: AsyncIterator[bytes]) -> None:
        assert await anext(pieces) == b"piece"

    request = PreparedRequest(
        method="GET", url="http://server/", headers={}, body=(), receive=take_one
    )
    asyncio.run(
        HttpxEngine(httpx.MockTransport(lambda _: httpx.Response(200, stream=body))).send(request)
    )
    assert body.is_closed


def test_files_of_a_form_are_read_as_they_are_sent() -> None:
    """A large file is never in memory as a whole: its pieces are read as they are sent."""
    size = FormPieces.CHUNK_NBYTES
    file = CountedFile(bytes(2 * size + 5))
    receiver = Receiver(file)
    form = FormPieces([b"head", Stored(file, 0, 2 * size + 5)])
    asyncio.run(
        HttpxEngine(receiver).send(
            PreparedRequest(
                method="POST", url="http://server/", headers={}, body=form, nbytes=2 * size + 9
            )
        )
    )
    assert receiver.pieces == [(4, 0), (size, 1), (size, 2), (5, 3)]
    assert receiver.announced == str(2 * size + 9)
