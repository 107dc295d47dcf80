"""Transport to the server in this process. Event streams arrive piece by piece, while httpx waits for the whole response.

The time that the server takes to load torch and a model does not count toward a request's timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx

from tinker._http.asgi_scope import make_scope
from tinker._http.loading import FOLLOW_LOADING, Follow
from tinker._loop import loop_thread
from tinker._wire import EVENT_STREAM


class InProcessTransport(httpx.AsyncBaseTransport):
    """An ASGI application as a transport."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._whole = httpx.ASGITransport(app)
        self._loading = getattr(getattr(app, "state", None), "loading", None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Hand the request to the application."""
        follow: Follow | None = request.extensions.get(FOLLOW_LOADING)
        if follow is None or self._loading is None:
            return await self._exchange(request)
        with follow(self._loading):
            return await self._exchange(request)

    async def _exchange(self, request: httpx.Request) -> httpx.Response:
        if EVENT_STREAM not in request.headers.get("accept", ""):
            return await self._whole.handle_async_request(request)
        exchange = _StreamedExchange(await request.aread())
        task = loop_thread().task(self._app(make_scope(request), exchange.receive, exchange.send), "request in this process")
        task.add_done_callback(exchange.end)
        try:
            await exchange.begun.wait()
        except asyncio.CancelledError:
            task.cancel()
            raise
        if exchange.status == 0:
            await task
            raise RuntimeError("the application sent no response")
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_StreamedBody(exchange, task))


class _StreamedExchange:
    """The application's side of one request."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = asyncio.Event()
        self.gone = asyncio.Event()
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        """Return the whole body; later that the client is gone, once it is."""
        if self._body is None:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take the head of the response, or a part of its body."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
            self.begun.set()
        elif part := message.get("body", b""):
            self.parts.put_nowait(part)

    def end(self, _: object) -> None:
        """Note that the application is done."""
        self.begun.set()
        self.parts.put_nowait(None)


class _StreamedBody(httpx.AsyncByteStream):
    """The parts of a response as they come; closing it ends the application's work."""

    def __init__(self, exchange: _StreamedExchange, task: asyncio.Task[None]) -> None:
        self._exchange, self._task = exchange, task

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._exchange.parts.get()) is not None:
            yield part
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise httpx.ReadError(f"the application failed: {error}") from error

    async def aclose(self) -> None:
        """Tell the application that the client is gone, and wait for its end."""
        self._exchange.gone.set()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task
