"""A server that speaks HTTP/2 frame by frame: a script says what each connection does.

    async def refuse_the_first(connection: Connection) -> None:
        connection.reset(await connection.request(), H2Reason.REFUSED_STREAM)
        await connection.answer_all()

    with http2_server(refuse_the_first, ssl_context=server_context("h2"), max_concurrent_streams=10) as server:
        get_twice(server.url)
    assert [request.path for request in server.connections[0].requests.values()] == ["/", "/"]

A connection acknowledges settings, answers pings, and opens its windows again by itself. It ends
with its script. To go deaf, a script calls ``connection.transport.pause_reading()``; a test gives
an order with ``server.portal.call(connection.break_off)``.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, TypeAlias

import attrs
import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from httpunk import H2Reason, HeaderMap
from httpunk import _httpunk as wire

from tinker.testing.server import call_app

Script: TypeAlias = "Callable[[Connection], Awaitable[None]]"
Headers: TypeAlias = Iterable[tuple[str | bytes, str | bytes]]
_WINDOW, _FRAME_SIZE = 65_535, 16_384  # of a peer that says nothing else


@attrs.define(eq=False)
class Request:
    """A received request. ``error_code`` is the code of the client's reset, ``window`` the client's
    send window.
    """

    stream_id: int
    method: str
    path: str
    headers: httpx.Headers
    window: int
    body: bytearray = attrs.field(factory=bytearray)
    is_complete: bool = False
    error_code: int | None = None


class Connection(asyncio.Protocol):
    """One connection. Methods that wait raise ConnectionResetError when the client goes, which ends
    the script.
    """

    transport: asyncio.Transport

    def __init__(self, server: Http2Server) -> None:
        # the number counts the server's connections
        self.server, self.number, self.codec = server, 0, wire.H2Codec("server")
        self.requests: dict[int, Request] = {}  # by stream
        self.pings = self.acknowledged_settings = 0
        self.answers_pings = self.opens_windows = True
        self._is_lost = self._has_preface = False
        self._heads: deque[Request] = deque()
        self._window = self._first_window = _WINDOW
        self._arrival = asyncio.Event()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until received frames fulfil the condition."""
        while not condition():
            if self._is_lost:
                raise ConnectionResetError("the client has gone")
            await self._arrival.wait()

    async def lost(self) -> None:
        """Wait until the client disconnects."""
        await self.wait_until(lambda: False)

    async def head(self) -> Request:
        """Return the next request, of which only the head needs to have arrived."""
        await self.wait_until(lambda: self._heads)
        return self._heads.popleft()

    async def request(self) -> Request:
        """Return the next request with its whole body."""
        request = await self.head()
        await self.wait_until(lambda: request.is_complete)
        return request

    def begin(self, request: Request, status: int = 200, headers: Headers = ()) -> None:
        """Send the head of a response, and no more."""
        self.send(
            self.codec.serialize_response_headers(request.stream_id, status, HeaderMap(headers))
        )

    async def write(self, request: Request, body: bytes, *, end: bool = True) -> None:
        """Send a part of a body as fast as the client's windows allow."""
        rest = memoryview(body)
        while rest and request.error_code is None:
            await self.wait_until(
                lambda: min(self._window, request.window) > 0 or request.error_code is not None
            )
            size = max(0, min(self._window, request.window, _FRAME_SIZE, len(rest)))
            self.send(self.codec.serialize_data(request.stream_id, bytes(rest[:size])))
            self._window, request.window, rest = (
                self._window - size,
                request.window - size,
                rest[size:],
            )
        if end and request.error_code is None:
            self.send(self.codec.serialize_data(request.stream_id, b"", end_stream=True))

    async def respond(
        self, request: Request, body: bytes = b"{}", status: int = 200, headers: Headers = ()
    ) -> None:
        """Send a whole response."""
        self.begin(request, status, headers)
        await self.write(request, body)

    async def answer(self, request: Request) -> None:
        """Send the application's response to a request, or an empty object if there is no
        application.
        """
        await self.wait_until(lambda: request.is_complete or request.error_code is not None)
        if request.error_code is not None:
            return None
        if self.server.app is None:
            return await self.respond(request)
        url, content = self.server.url + request.path, bytes(request.body)
        answer = await call_app(
            self.server.app,
            httpx.Request(request.method, url, headers=request.headers, content=content),
        )
        return await self.respond(request, answer.content, answer.status, answer.headers.raw)

    async def answer_all(self) -> None:
        """Answer all further requests concurrently, until the client disconnects."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self.answer(await self.head()))

    def reset(self, request: Request, code: H2Reason) -> None:
        """End a stream with RST_STREAM."""
        self.send(self.codec.serialize_rst_stream(request.stream_id, int(code)))

    def go_away(self, last: Request | None, code: H2Reason = H2Reason.NO_ERROR) -> None:
        """Announce that the requests after ``last`` (None: all) were not processed, and that no
        more will be.
        """
        self.send(self.codec.serialize_go_away(0 if last is None else last.stream_id, int(code)))

    def open_window(self, request: Request | None, size: int) -> None:
        """Let the client send more: on a stream, or (None) on the connection."""
        self.send(
            self.codec.serialize_window_update(0 if request is None else request.stream_id, size)
        )

    def send(self, frames: bytes) -> None:
        """Send bytes as they are; ``codec`` makes them."""
        self.transport.write(frames)

    def break_off(self) -> None:
        """End the connection with a reset of TCP."""
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.server.start(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._arrival.set()

    def data_received(self, data: bytes) -> None:
        if not self._has_preface:
            self._has_preface, data = bool(self.codec.feed_preface(data)), b""
        for frame in self.codec.receive(data) if self._has_preface else ():
            self._receive(frame)
        self._arrival.set()
        self._arrival = asyncio.Event()

    def _receive(self, frame: wire.H2Frame) -> None:
        if isinstance(frame, wire.H2FrameHeaders) and frame.method is not None:
            headers, path = httpx.Headers(frame.headers.raw_items()), frame.path or ""
            request = Request(
                frame.stream_id,
                frame.method,
                path,
                headers,
                self._first_window,
                is_complete=frame.end_stream,
            )
            self.requests[frame.stream_id] = request
            self._heads.append(request)
        elif isinstance(frame, wire.H2FrameData):
            self._receive_body(self.requests[frame.stream_id], frame)
        elif isinstance(frame, wire.H2FrameSettings) and frame.ack:
            self.acknowledged_settings += 1
        elif isinstance(frame, wire.H2FrameSettings):
            self._first_window = frame.initial_window_size or self._first_window
            self.send(self.codec.serialize_settings_ack())
        elif isinstance(frame, wire.H2FramePing) and not frame.ack:
            self.pings += 1
            self.send(self.codec.serialize_ping_ack(frame.data) if self.answers_pings else b"")
        elif isinstance(frame, wire.H2FrameWindowUpdate) and frame.stream_id == 0:
            self._window += frame.increment
        elif isinstance(frame, wire.H2FrameWindowUpdate):
            self.requests[frame.stream_id].window += frame.increment
        elif isinstance(frame, wire.H2FrameRstStream):
            self.requests[frame.stream_id].error_code = frame.error_code

    def _receive_body(self, request: Request, frame: wire.H2FrameData) -> None:
        request.body += frame.data
        request.is_complete = frame.end_stream
        if self.opens_windows and frame.flow_controlled_len:
            self.open_window(None, frame.flow_controlled_len)
            self.open_window(request, frame.flow_controlled_len)


@attrs.define(eq=False)
class Http2Server:
    """The server; ``connections`` are in the order in which they came."""

    script: Script
    app: Any
    settings: dict[str, Any] | None
    portal: BlockingPortal
    url: str = ""
    connections: list[Connection] = attrs.field(factory=list)
    _scripts: set[asyncio.Task[None]] = attrs.field(factory=set)
    _listener: asyncio.Server = attrs.field(init=False)

    async def listen(self, ssl_context: ssl.SSLContext | None) -> None:
        loop, name = (
            asyncio.get_running_loop(),
            "http://127.0.0.1" if ssl_context is None else "https://localhost",
        )
        self._listener = await loop.create_server(
            lambda: Connection(self), "127.0.0.1", 0, ssl=ssl_context
        )
        self.url = f"{name}:{self._listener.sockets[0].getsockname()[1]}"

    def start(self, connection: Connection) -> None:
        connection.number = len(self.connections)
        self.connections.append(connection)
        if self.settings is not None:
            connection.send(connection.codec.serialize_settings(**self.settings))
        self._scripts.add(asyncio.ensure_future(self._run(connection)))

    async def _run(self, connection: Connection) -> None:
        try:
            await self.script(connection)
        except* ConnectionResetError:
            pass
        finally:
            connection.transport.close()

    async def end(self) -> list[Exception]:
        """Break all connections, and return what went wrong in scripts."""
        self._listener.close()
        for connection in self.connections:
            connection.transport.abort()
        for script in self._scripts:
            script.cancel()
        ends = await asyncio.gather(*self._scripts, return_exceptions=True)
        return [end for end in ends if isinstance(end, Exception)]


@contextlib.contextmanager
def http2_server(
    script: Script = Connection.answer_all,
    *,
    app: Any = None,
    ssl_context: ssl.SSLContext | None = None,
    greets: bool = True,
    **settings: int,
) -> Generator[Http2Server]:
    """Run the server in a separate thread. ``settings`` are those of HTTP/2; without ``greets``
    none are sent.

    Raises what a script raised, at the end.
    """
    with start_blocking_portal() as portal:
        server = Http2Server(script, app, settings if greets else None, portal)
        portal.call(server.listen, ssl_context)
        try:
            yield server
        finally:
            failures = portal.call(server.end)
    if failures:
        raise failures[0]
