"""A proxy on a port: HTTP with tunnels, with or without TLS, and SOCKS5; every name leads to one
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import urlsplit

import attrs

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@attrs.frozen
class Asked:
    """A request as the proxy got it: CONNECT, another method, or SOCKS with the name and the
    password.
    """

    method: str
    target: str
    headers: dict[str, str]


@attrs.define
class TunnelProxy:
    """A proxy whose ``refusal`` replaces a connection: a status, or a SOCKS code.

    With a ``password``, SOCKS requires it.
    """

    port: int
    upstream: tuple[str, int] = ("", 0)
    refusal: int = 0
    password: str = ""
    asked: list[Asked] = attrs.field(factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, for one exchange or one tunnel."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            first = await reader.readexactly(1)
            if first == b"\x05":
                await self._serve_socks(reader, writer)
            else:
                await self._serve_http(first, reader, writer)
        writer.close()

    async def _serve_http(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:-2])
        }
        self.asked.append(Asked(method, target, headers))
        if self.refusal:
            writer.write(
                b"HTTP/1.1 %d Refused\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                % self.refusal
            )
        elif method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await self._relay((reader, writer))
        else:
            path = target.removeprefix("http://" + urlsplit(target).netloc)
            kept = [
                f"{name}: {value}"
                for name, value in headers.items()
                if not name.startswith("proxy-")
            ]
            lines = [f"{method} {path} HTTP/1.1", *kept, "connection: close", "", ""]
            await self._relay((reader, writer), "\r\n".join(lines).encode("latin-1"))

    async def _serve_socks(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        methods = await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x05\x02" if self.password else b"\x05\x00")
        credential = await self._login(reader, writer) if self.password and 2 in methods else ""
        if credential.partition(":")[2] != self.password:
            return
        _, _, _, kind = await reader.readexactly(4)
        length = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        host = await reader.readexactly(length)
        port = int.from_bytes(await reader.readexactly(2), "big")
        self.asked.append(
            Asked(
                "SOCKS",
                f"{host.decode() if kind == 3 else host.hex()}:{port}",
                {"credential": credential},
            )
        )
        writer.write(b"\x05%c\x00\x01\x00\x00\x00\x00\x00\x00" % self.refusal)
        if not self.refusal:
            await self._relay((reader, writer))

    async def _login(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        await reader.readexactly(1)
        name, password = [
            (await reader.readexactly((await reader.readexactly(1))[0])).decode() for _ in range(2)
        ]
        writer.write(b"\x01\x00" if password == self.password else b"\x01\x01")
        return f"{name}:{password}"

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let one connection lead to the server, without being asked."""
        await self._relay((reader, writer))
        writer.close()

    async def _relay(self, client: Streams, head: bytes = b"") -> None:
        server = await asyncio.open_connection(*self.upstream)
        server[1].write(head)
        copies = [
            asyncio.create_task(_copy(client[0], server[1])),
            asyncio.create_task(_copy(server[0], client[1])),
        ]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        server[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()


@contextlib.contextmanager
def tunnel_proxy(
    upstream: str,
    context: ssl.SSLContext | None = None,
    *,
    host: str = "127.0.0.1",
    relays: bool = False,
) -> Iterator[TunnelProxy]:
    """Run a proxy to the server of an address in a separate thread; ``relays``
    without being asked.
    """
    proxy, up, over = TunnelProxy(0), threading.Event(), asyncio.Event()
    address = urlsplit(upstream)
    proxy.upstream = (address.hostname or "", address.port or 0)

    async def run() -> None:
        listener = await asyncio.start_server(
            proxy.relay if relays else proxy.serve, host, 0, ssl=context
        )
        proxy.port = listener.sockets[0].getsockname()[1]
        up.set()
        await over.wait()
        listener.close()

    loop = asyncio.new_event_loop()

    def serve() -> None:
        # which cancels the connections at the end
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=serve)
    thread.start()
    assert up.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
