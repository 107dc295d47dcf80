"""Transports of httpx: one connection pool for each proxy, an httpx client of the user, and the
server of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Generator, Mapping, MutableMapping
from typing import Any, cast
from urllib.parse import unquote

import httpx

from tinker._config import Proxies
from tinker._http.messages import IDLE_SECONDS
from tinker._installation import install_command
from tinker._loop import loop_thread
from tinker._wire import EVENT_STREAM

# The engine limits how many exchanges there are at once.
_LIMITS = httpx.Limits(
    max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE_SECONDS
)


class ProxiedTransport(httpx.AsyncBaseTransport):
    """One httpx transport for each proxy and one for direct connections, created on first use."""

    def __init__(
        self, proxies: Proxies, headers: Mapping[str, str], context: ssl.SSLContext
    ) -> None:
        self._proxies, self._headers, self._context = proxies, headers, context
        self._transports: dict[str | None, httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request through the transport for its address."""
        proxy = self._proxies.of(str(request.url))
        transport = self._transports.get(proxy)
        if transport is None:
            transport = self._transports[proxy] = self._open(proxy)
        return await transport.handle_async_request(request)

    def _open(self, proxy: str | None) -> httpx.AsyncHTTPTransport:
        """Raises httpx.UnsupportedProtocol without the package that a SOCKS proxy needs."""
        given = None
        if proxy is not None:
            context = self._context if proxy.startswith("https:") else None
            given = httpx.Proxy(
                proxy.replace("socks5h://", "socks5://"),
                headers=dict(self._headers),
                ssl_context=context,
            )
        try:
            return httpx.AsyncHTTPTransport(
                proxy=given, trust_env=False, verify=self._context, limits=_LIMITS
            )
        except ImportError:
            raise httpx.UnsupportedProtocol(
                f"a SOCKS proxy needs another package: {install_command('socks')}"
            ) from None

    async def aclose(self) -> None:
        """Close every connection."""
        for transport in self._transports.values():
            await transport.aclose()


# Headers that the client sets itself, or that do not fit a body that it has decoded.
_OF_THE_CONNECTION = frozenset({"host", "connection"})
_OF_THE_CODING = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def wrap_client(client: object) -> httpx.AsyncBaseTransport:
    """Return a transport that sends through the user's client. Raises TypeError for
    anything else.
    """
    newer = sys.modules.get("httpx2")
    if isinstance(client, httpx.AsyncClient) or (
        newer is not None and isinstance(client, newer.AsyncClient)
    ):
        return GivenClient(cast("httpx.AsyncClient", client))  # both have the same methods
    raise TypeError(
        "http_client must be an httpx.AsyncClient or httpx2.AsyncClient, got "
        f"{type(client).__name__}"
    )


class GivenClient(httpx.AsyncBaseTransport):
    """The user's client as a transport. The user closes it. It follows no redirects; the transport
    of this package does.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request. Raises the exceptions of httpx, whichever the client is of."""
        headers = [
            (name, value)
            for name, value in request.headers.multi_items()
            if name not in _OF_THE_CONNECTION
        ]
        stream = request.stream
        with _translating():
            built = self._client.build_request(
                request.method,
                str(request.url),
                headers=headers,
                content=b"".join(stream)
                if isinstance(stream, httpx.ByteStream)
                else _pieces(stream),
                extensions=dict(request.extensions),  # with the timeouts
            )
            response = await self._client.send(built, stream=True, follow_redirects=False)
        if response.is_stream_consumed:  # by a hook of the client
            kept = [
                (name, value)
                for name, value in response.headers.multi_items()
                if name not in _OF_THE_CODING
            ]
            return httpx.Response(response.status_code, headers=kept, content=response.content)
        return httpx.Response(
            response.status_code,
            headers=response.headers.raw,
            stream=_SentBody(response),
            extensions=dict(response.extensions),
        )


class _SentBody(httpx.AsyncByteStream):
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


@contextlib.contextmanager
def _translating() -> Generator[None]:
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


class InProcessTransport(httpx.AsyncBaseTransport):
    """An ASGI application as a transport. Event streams arrive piece by piece;
    ``httpx.ASGITransport`` would collect them.

    ``loading`` reports the models that the application loads, which requests wait for.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._whole = httpx.ASGITransport(app)
        self.loading = getattr(getattr(app, "state", None), "loading", None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Hand the request to the application."""
        if EVENT_STREAM not in request.headers.get("accept", ""):
            return await self._whole.handle_async_request(request)
        exchange = _StreamedExchange(await request.aread())
        task = loop_thread().task(
            self._app(_scope_of(request), exchange.receive, exchange.send),
            "request in this process",
        )
        task.add_done_callback(exchange.end)
        try:
            await exchange.begun.wait()
        except asyncio.CancelledError:
            task.cancel()
            raise
        if exchange.status == 0:
            await task
            raise RuntimeError("the application sent no response")
        return httpx.Response(
            exchange.status, headers=exchange.headers, stream=_StreamedBody(exchange.parts, task)
        )


def _scope_of(request: httpx.Request) -> dict[str, Any]:
    """Return the scope with which an ASGI application gets a request."""
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
        "client": ("127.0.0.1", 123),
        "root_path": "",
    }


class _StreamedExchange:
    """The application's side of one request."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = asyncio.Event()
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        """Return the whole body once. Later calls wait until the client has gone, which cancels
        them.
        """
        if self._body is None:
            await asyncio.get_running_loop().create_future()
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

    def __init__(self, parts: asyncio.Queue[bytes | None], task: asyncio.Task[None]) -> None:
        self._parts, self._task = parts, task

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None:
            yield part
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise httpx.ReadError(f"the application failed: {error}") from error

    async def aclose(self) -> None:
        """Cancel what the application still does, and wait for its end."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task
