"""One exchange with an ASGI application, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx

from tinker.testing.faults import ServerResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp


async def call_app(app: ASGIApp, request: httpx.Request, body: bytes) -> ServerResponse:
    """What the application answers; whatever it raises is raised here."""
    exchange = _ASGIExchange(body)
    await app(_scope(request), exchange.receive, exchange.send)
    return ServerResponse(status=exchange.status, headers=httpx.Headers(exchange.headers), content=b"".join(exchange.parts))


def _scope(request: httpx.Request) -> dict[str, Any]:
    raw_path = request.url.raw_path.partition(b"?")[0]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": unquote(raw_path.decode("ascii")),
        "raw_path": raw_path,
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }


class _ASGIExchange:
    """The application's side of one request."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        """The whole body; later nothing, as the client stays."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        else:
            self.parts.append(message.get("body", b""))
