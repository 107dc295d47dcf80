"""One exchange with an ASGI application, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import httpx

from tinker._http import make_scope
from tinker.testing.faults import ServerResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp


async def call_app(app: ASGIApp, request: httpx.Request, body: bytes) -> ServerResponse:
    """Return the application's response. Exceptions of the application are raised here."""
    exchange = _ASGIExchange(body)
    await app(make_scope(request), exchange.receive, exchange.send)
    return ServerResponse(status=exchange.status, headers=httpx.Headers(exchange.headers), content=b"".join(exchange.parts))


class _ASGIExchange:
    """The application's side of one request."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        """Return the whole body. A second call never returns, because the client does not disconnect."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        else:
            self.parts.append(message.get("body", b""))
