"""An httpx or httpx2 client of the user as a transport: it builds and sends the requests, with what it adds to them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

# What the client sets itself, or what is no longer true of a body that it has decoded.
_OF_THE_CONNECTION = frozenset({"host", "connection"})
_OF_THE_CODING = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def wrap_client(client: object) -> httpx.AsyncBaseTransport:
    """Return a transport that sends through the user's client. Raises TypeError for anything else."""
    newer = sys.modules.get("httpx2")
    if isinstance(client, httpx.AsyncClient) or (newer is not None and isinstance(client, newer.AsyncClient)):
        return GivenClient(cast("httpx.AsyncClient", client))  # both have the same methods
    raise TypeError(f"http_client must be an httpx.AsyncClient or httpx2.AsyncClient, got {type(client).__name__}")


class GivenClient(httpx.AsyncBaseTransport):
    """Send through a client that somebody else made, and closes. Its redirects are not followed; those are ours."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request. Raises the exceptions of httpx, whichever the client is of."""
        headers = [(name, value) for name, value in request.headers.multi_items() if name not in _OF_THE_CONNECTION]
        stream = request.stream
        with _translating():
            built = self._client.build_request(
                request.method,
                str(request.url),
                headers=headers,
                content=b"".join(stream) if isinstance(stream, httpx.ByteStream) else _pieces(stream),
                extensions=dict(request.extensions),  # with the timeouts
            )
            response = await self._client.send(built, stream=True, follow_redirects=False)
        if response.is_stream_consumed:  # by a hook of the client
            kept = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_CODING]
            return httpx.Response(response.status_code, headers=kept, content=response.content)
        return httpx.Response(
            response.status_code,
            headers=response.headers.raw,
            stream=_Body(response),
            extensions=dict(response.extensions),
        )


class _Body(httpx.AsyncByteStream):
    """The body of a response as the server has sent it."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translating():
            async for piece in self._response.aiter_raw():
                yield piece

    async def aclose(self) -> None:
        with _translating():
            await self._response.aclose()


async def _pieces(stream: object) -> AsyncIterator[bytes]:
    async for piece in cast("AsyncIterator[bytes]", stream):
        yield piece


@contextmanager
def _translating() -> Iterator[None]:
    """Raise the exception of httpx that has the same name as that of httpx2."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "httpx2":
            raise
        raise _same_of_httpx(error)(str(error)) from None


def _same_of_httpx(error: Exception) -> type[httpx.RequestError]:
    for kind in type(error).__mro__:
        same = getattr(httpx, kind.__name__, None)
        if isinstance(same, type) and issubclass(same, httpx.RequestError):
            return same
    return httpx.TransportError
