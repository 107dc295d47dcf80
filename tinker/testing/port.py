"""A local port that delivers responses as the script says: complete, truncated, slowly, or not at
all.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from http import HTTPStatus
from typing import Any, TypeAlias

import httpx
from httpunk import H2Reason, HeaderMap, HTTPunkError, h1, h2
from httpunk.asyncio import AutoServerProtocol

from tinker.testing import faults
from tinker.testing.faults import Delivery, Fault, ServerResponse

Serve: TypeAlias = Callable[[httpx.Request, Callable[[float], Any]], Awaitable[Delivery]]
_Request: TypeAlias = h1.ServerRequest | h2.ServerRequest

#: Headers of one connection.
_CONNECTION_HEADERS = frozenset(
    (b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"date", b"server")
)
_logger = logging.getLogger(__name__)


class Port:
    """A server of HTTP/1.1 and HTTP/2 in its own thread. ``serve`` returns the deliveries.

    With an ``ssl_context`` it requires TLS, and the context's ALPN protocols say which versions of
    HTTP it speaks.
    """

    def __init__(self, serve: Serve, ssl_context: ssl.SSLContext | None = None) -> None:
        self.serve = serve
        self.connections: weakref.WeakSet[_Peer] = weakref.WeakSet()
        self.ssl_context = ssl_context
        self._loop = asyncio.new_event_loop()
        self.listener: asyncio.Server | None = None
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="tinker-faulty-port", daemon=True)
        self._thread.start()
        self._call(self._listen())

    @property
    def url(self) -> str:
        """Return the base URL, which does not change."""
        return (
            f"http://127.0.0.1:{self._number}"
            if self.ssl_context is None
            else f"https://localhost:{self._number}"
        )

    def open_listener(self) -> None:
        """Accept connections again."""
        self._call(self._listen())

    def close_listener(self) -> None:
        """Refuse new connections and break existing ones."""
        self._call(self._stop_listening())

    def close(self) -> None:
        """Stop the server, and wait until the thread has ended."""
        self.close_listener()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        # which cancels all tasks at the end
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        if self.listener is None:
            connect, address = functools.partial(_Peer, self), ("127.0.0.1", self._number)
            self.listener = await self._loop.create_server(
                connect, *address, backlog=2048, ssl=self.ssl_context
            )
            self._number = self.listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        for connection in self.connections:
            connection.transport.abort()


class _Peer(AutoServerProtocol):
    """A client on its connection, which speaks HTTP/1.1 or HTTP/2."""

    def __init__(self, port: Port) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._port = port

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)  # type: ignore[no-untyped-call]
        self.transport = transport
        self._port.connections.add(self)
        if self._port.listener is None:
            transport.abort()

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().eof_received()  # type: ignore[no-untyped-call]
        return self._port.ssl_context is None  # asyncio has no half-closed connections over TLS

    async def handle(self, request: _Request) -> None:
        url = f"{self._port.url}{request.target}"
        asked = httpx.Request(
            request.method, url, headers=request.headers.raw_items(), content=await request.read()
        )
        try:
            delivery = await self._port.serve(asked, asyncio.sleep)
            await self._deliver(request, delivery.answer, delivery.fault)
        except (HTTPunkError, OSError):
            return  # the client has gone meanwhile
        except Exception:
            _logger.exception("the exchange failed: %s %s", request.method, request.target)
            await request.respond(500)

    async def _deliver(
        self, request: _Request, answer: ServerResponse | None, fault: Fault | None
    ) -> None:
        if fault is not None and fault.kind == "hang":
            await _hang(request, fault.seconds)
        if (
            answer is None
            and fault is not None
            and fault.error_code is not None
            and isinstance(request, h2.ServerRequest)
        ):
            await request.reset(fault.error_code)
        elif answer is None:
            self.transport.abort()
        elif fault is not None and fault.kind in ("truncate", "slow"):
            await self._write_in_pieces(request, answer, fault)
        elif isinstance(request, h1.ServerRequest) and not _is_plain(answer, fault):
            await self._write_raw(request, answer, fault)
        else:
            for seconds in faults.pauses(answer, fault):  # HTTP/2 has no other form for them
                await asyncio.sleep(seconds)
            await request.respond(
                answer.status, headers=HeaderMap(_keep_headers(answer)), body=answer.content
            )

    async def _write_raw(
        self, request: h1.ServerRequest, answer: ServerResponse, fault: Fault | None
    ) -> None:
        """Write the bytes of a response that no HTTP library sends, then end the connection."""
        request.detach()
        for seconds, piece in _render(answer, fault):
            await asyncio.sleep(seconds)
            if self.transport.is_closing():
                return
            self.transport.write(piece)
        self.transport.close()

    async def _write_in_pieces(
        self, request: _Request, answer: ServerResponse, fault: Fault
    ) -> None:
        headers = HeaderMap(
            [*_keep_headers(answer), (b"content-length", b"%d" % len(answer.content))]
        )
        stream = await request.send_response(answer.status, headers=headers)
        if fault.kind == "truncate":
            await stream.send_data(answer.content[: len(answer.content) // 2])
            await stream.send_reset(int(H2Reason.INTERNAL_ERROR))  # HTTP/1.1 ends the connection
            return
        for piece in faults.pieces(answer.content):
            await asyncio.sleep(fault.seconds or 0.0)
            await stream.send_data(piece)
        await stream.send_data(b"", end_stream=True)


async def _hang(request: _Request, seconds: float | None) -> None:
    """Wait until the time is over. Raises ConnectionError or HTTPunkError when the
    client has gone.
    """
    gone = (
        request.peer_closed() if isinstance(request, h1.ServerRequest) else request.reset_received()
    )
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(gone, seconds)
        raise ConnectionAbortedError


# Raw responses that HTTP libraries cannot send: odd header bytes, slow heads, informational
# responses.


def _is_plain(answer: ServerResponse, fault: Fault | None) -> bool:
    """Return whether an HTTP library can send the response."""
    is_special = fault is not None and fault.kind in ("trickle", "inform")
    return not is_special and all(value.isascii() for _, value in answer.headers.raw)


def _render(answer: ServerResponse, fault: Fault | None) -> Iterator[tuple[float, bytes]]:
    """Yield the pieces to write, each with the delay before it in seconds. The connection ends
    after the last piece.
    """
    seconds = 0.0 if fault is None else fault.seconds or 0.0
    headers = [
        *_keep_headers(answer),
        (b"content-length", b"%d" % len(answer.content)),
        (b"connection", b"close"),
    ]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    first, rest = _status_line(answer.status), head + b"\r\n" + answer.content
    if fault is not None and fault.kind == "trickle":
        yield 0.0, first + b"x-trickle: "
        yield from faults.repeat((seconds, b"."), fault.count)
        yield 0.0, b"\r\n" + rest
    elif fault is not None and fault.kind == "inform":
        pause = 0.0
        for line in faults.repeat(_status_line(fault.informs), fault.count):
            yield pause, line + b"\r\n"
            pause = seconds
        yield seconds, first + rest
    else:
        yield 0.0, first + rest


def _status_line(status: int) -> bytes:
    known = status in HTTPStatus._value2member_map_
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase if known else 'Unknown'}\r\n".encode()


def _keep_headers(answer: ServerResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers without those of a connection."""
    return [
        (name, value)
        for name, value in answer.headers.raw
        if name.lower() not in _CONNECTION_HEADERS
    ]
