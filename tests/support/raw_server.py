"""A server on a port whose answers are bytes as a test writes them, where it writes some; the toy
server's elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import httpx
from anyio.from_thread import start_blocking_portal

from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
from tinker.testing.faults import operation_of
from tinker.testing.server import call_app


@attrs.define
class RawServer:
    """A server whose ``script`` has the responses of each operation and their counts; ``"*"`` is
    any operation.
    """

    app: Any
    url: str = ""
    asked: Counter[str] = attrs.field(factory=Counter)
    bodies: dict[str, bytes] = attrs.field(factory=dict)
    headers: dict[str, httpx.Headers] = attrs.field(factory=dict)
    _scripted: dict[str, tuple[bytes, int]] = attrs.field(factory=dict)

    def script(self, operation: str, answer: bytes, times: int = 10**9) -> None:
        """Answer the next requests so, and end their connections."""
        self._scripted[operation] = answer, times

    def forget(self) -> None:
        """Clear the script and the counts."""
        self._scripted.clear()
        self.asked.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, for one exchange."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._exchanged(reader, writer)
        writer.close()

    async def _exchanged(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = httpx.Headers(
            [
                (name, value.strip())
                for name, _, value in (line.partition(":") for line in head[1:-2])
            ]
        )
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        operation = operation_of(method, target.partition("?")[0])
        self.asked[operation] += 1
        self.bodies[operation], self.headers[operation] = body, headers
        for name in (operation, "*"):
            answer, times = self._scripted.get(name, (b"", 0))
            if times > 0:
                self._scripted[name] = answer, times - 1
                writer.write(answer)
                await writer.drain()
                return
        asked = httpx.Request(method, f"{self.url}{target}", headers=headers, content=body)
        answered = await call_app(self.app, asked)
        writer.write(raw(answered.status, answered.content, dict(answered.headers)))
        await writer.drain()


def raw(
    status: int, content: bytes = b"{}", headers: dict[str, str] | None = None, *lines: bytes
) -> bytes:
    """Return an answer as it goes over the wire; ``lines`` are more header lines, in whatever
    bytes.
    """
    known = {**(headers or {}), "content-length": str(len(content)), "connection": "close"}
    spelled = [f"{name}: {value}".encode() for name, value in known.items()]
    return b"\r\n".join([b"HTTP/1.1 %d X" % status, *spelled, *lines, b"", content])


@contextlib.contextmanager
def raw_server(folder: Path) -> Iterator[RawServer]:
    """Run the server in a separate thread."""
    state = State(ToyEngine, Settings(data_dir=folder, hold_seconds=0.1))
    server = RawServer(create_app(state))
    with contextlib.closing(state), start_blocking_portal() as portal:
        listen = functools.partial(
            asyncio.start_server, server.serve, "127.0.0.1", 0, limit=1 << 20
        )
        listener = portal.call(listen)
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield server
        finally:
            portal.call(listener.close)
