"""An httpx client of the user as a transport: requests go through it, with what it adds to them."""

from __future__ import annotations

import httpx


class GivenClient(httpx.AsyncBaseTransport):
    """Send through a client that somebody else made, and closes."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._client.send(request, stream=True)
        return httpx.Response(
            response.status_code, headers=response.headers, stream=response.stream, extensions=response.extensions
        )
