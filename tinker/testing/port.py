"""A local port that delivers responses as the script says: complete, truncated, slowly, or not at all."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx
from aiohttp import web

from tinker.testing import faults, wire
from tinker.testing.faults import Fault, ServerResponse

if TYPE_CHECKING:
    from tinker.testing.server import Delivery

Serve: TypeAlias = Callable[[httpx.Request, Callable[[float], Any]], Awaitable["Delivery"]]

_LOOK_SECONDS = 0.1


class Port:
    """An HTTP/1.1 server in its own thread. ``serve`` returns the deliveries."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._loop = asyncio.new_event_loop()
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._number = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tinker-faulty-port", daemon=True)
        self._thread.start()
        self._call(self._listen())

    @property
    def url(self) -> str:
        """Return the base URL, which does not change."""
        return f"http://127.0.0.1:{self._number}"

    def open_listener(self) -> None:
        """Accept connections again."""
        self._call(self._listen())

    def close_listener(self) -> None:
        """Refuse new connections and break existing ones."""
        self._call(self._stop_listening())

    def close(self) -> None:
        """Stop the server, and wait until the thread has ended."""
        self._closing = True
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        if self._listener is not None:
            return
        if self._server is None:
            self._server = web.Server(self._handle, auto_decompress=False, access_log=None, keepalive_timeout=75)
        listener = socket.create_server(("127.0.0.1", self._number), backlog=2048)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = listener.getsockname()[1]
        self._listener = await self._loop.create_server(self._server, sock=listener)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in self._server.connections if self._server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def _end(self) -> None:
        await self._stop_listening()
        if self._server is not None:
            await self._server.shutdown(timeout=1.0)
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        url = f"{self.url}{request.raw_path}"
        asked = httpx.Request(request.method, url, headers=list(request.raw_headers), content=await request.content.read())
        delivery = await self._serve(asked, asyncio.sleep)
        try:
            return await self._deliver(request, delivery.answer, delivery.fault)
        except ConnectionError:
            return _break_connection(request)  # the client has gone meanwhile

    async def _deliver(
        self, request: web.BaseRequest, answer: ServerResponse | None, fault: Fault | None
    ) -> web.StreamResponse:
        if fault is not None and fault.kind == "hang":
            await self._hang(request, fault.seconds)
        if answer is None:
            return _break_connection(request)
        if fault is not None and fault.kind in ("truncate", "slow"):
            return await self._write_in_pieces(request, answer, fault)
        if not wire.is_plain(answer, fault):
            return await self._write_raw(request, answer, fault)
        return web.Response(status=answer.status, headers=_forward_headers(answer), body=answer.content)

    async def _hang(self, request: web.BaseRequest, seconds: float | None) -> None:
        """Wait until the time is over, the client disconnects, or the server ends."""
        ends = math.inf if seconds is None else self._loop.time() + seconds
        while not self._is_over(request) and self._loop.time() < ends:  # noqa: ASYNC110 - no event
            await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, ends - self._loop.time())))

    def _is_over(self, request: web.BaseRequest) -> bool:
        return self._closing or request.transport is None

    async def _write_raw(self, request: web.BaseRequest, answer: ServerResponse, fault: Fault | None) -> web.StreamResponse:
        """Write the bytes of a response that aiohttp cannot send, then end the connection."""
        for seconds, piece in wire.render(answer, fault):
            await self._hang(request, seconds)
            if self._is_over(request) or request.transport is None:
                break
            request.transport.write(piece)
        return _break_connection(request)

    async def _write_in_pieces(self, request: web.BaseRequest, answer: ServerResponse, fault: Fault) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_forward_headers(answer))
        response.content_length = len(answer.content)
        await response.prepare(request)
        if fault.kind == "truncate":
            await response.write(answer.content[: len(answer.content) // 2])
            return _break_connection(request, response)
        for piece in faults.pieces(answer.content):
            await asyncio.sleep(fault.seconds or 0.0)
            await response.write(piece)
        await response.write_eof()
        return response


def _forward_headers(answer: ServerResponse) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.lower() not in wire.OF_THE_CONNECTION}


def _break_connection(request: web.BaseRequest, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """End the connection. The returned response is not sent."""
    if request.transport is not None:
        request.transport.close()
    return response or web.Response()
