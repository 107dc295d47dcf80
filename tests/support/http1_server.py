"""A server that speaks HTTP/1.1 byte by byte: a script says what each connection does, in the words
of `http2_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import attrs
from anyio.from_thread import start_blocking_portal

Script: TypeAlias = "Callable[[Connection], Awaitable[Any]]"


@attrs.define(eq=False)
class Request:
    """A received request."""

    head: bytes
    body: bytes = b""


@attrs.define(eq=False)
class Connection:
    """One connection; ``number`` counts them. What waits raises when the client goes, which ends
    the script.
    """

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: dict[int, Request] = attrs.field(factory=dict)

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self.writer.transport

    @property
    def _is_lost(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None

    async def head(self) -> Request:
        """Read the head of the next request."""
        request = Request(await self.reader.readuntil(b"\r\n\r\n"))
        self.requests[len(self.requests)] = request
        return request

    async def request(self) -> Request:
        """Read the next request with its body."""
        request = await self.head()
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", request.head)
        request.body = await self.reader.readexactly(int(length[1]) if length else 0)
        return request

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def begin(self, _: Request) -> None:
        """Send the head of a response in pieces, and no more."""
        self.writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")

    async def write(self, _: Request, body: bytes, *, end: bool = True) -> None:
        """Send a piece of a body."""
        await self.send(b"%x\r\n%b\r\n" % (len(body), body) + b"0\r\n\r\n" * end)

    async def respond(self, _: Request, body: bytes = b"{}", status: int = 200) -> None:
        """Send a whole response."""
        await self.send(
            b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
        )

    async def answer_all(self) -> None:
        """Answer all further requests, until the client disconnects."""
        while True:
            await self.respond(await self.request())

    async def lost(self) -> None:
        """Read until the client disconnects."""
        while await self.reader.read(1 << 16):
            pass

    def break_off(self) -> None:
        """End the connection with a reset of TCP."""
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.transport.abort()


@attrs.define(eq=False)
class Http1Server:
    """The server; ``connections`` are in the order in which they came."""

    script: Script
    url: str = ""
    connections: list[Connection] = attrs.field(factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(len(self.connections), reader, writer)
        self.connections.append(connection)
        try:
            await self.script(connection)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def listen(self) -> asyncio.Server:
        listener = await asyncio.start_server(self.serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        return listener


@contextlib.contextmanager
def http1_server(script: Script = Connection.answer_all) -> Iterator[Http1Server]:
    """Run the server in a separate thread."""
    server = Http1Server(script)
    with start_blocking_portal() as portal:
        listener = portal.call(server.listen)
        try:
            yield server
        finally:
            portal.call(listener.close)
