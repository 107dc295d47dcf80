"""The engine over httpx: a client of the user, the server of this process, and files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Mapping,
    MutableMapping,
)
from contextlib import asynccontextmanager, contextmanager
from importlib import metadata
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httpx

from tinker._basics.config import Proxies
from tinker._basics.events import ModelLoading
from tinker._http import messages
from tinker._http.messages import (
    ACCEPTED_ENCODINGS,
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    IDLE_SECONDS,
    ConnectionFacts,
    ExchangeFailed,
    PreparedRequest,
    Purpose,
    RawResponse,
    Receive,
    check_size,
    late,
    unpack,
)
from tinker._http.observers import Observers
from tinker._loop import Clock, Deadline, Timer, loop_thread
from tinker._wire import EVENT_STREAM, INLINE_NBYTES
from tinker.errors import ClientClosedError

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
            given = httpx.Proxy(
                proxy.replace("socks5h://", "socks5://"),
                headers=dict(self._headers),
                ssl_context=self._context if proxy.startswith("https:") else None,
            )
        try:
            return httpx.AsyncHTTPTransport(
                proxy=given, trust_env=False, verify=self._context, limits=_LIMITS
            )
        except ImportError:
            from tinker._basics.installation import install_command

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
                else _stream_pieces(stream),
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


async def _stream_pieces(stream: object) -> AsyncIterator[bytes]:
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


logger = logging.getLogger("tinker")

LOADING_SECONDS = 1800.0  # that a request waits for: it may include the download of the model
LOADING_NEWS_SECONDS = 15.0  # between two lines of the log


class HttpxEngine:
    """An httpx transport: one that was injected, or the ASGI application of this process. ``slots``
    limit the exchanges.
    """

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        observers: Observers | None = None,
        slots: Mapping[Purpose, asyncio.Semaphore] | None = None,
    ) -> None:
        self.transport = transport
        self._slots = slots
        # which is false while it is empty
        seen = Observers(Clock()) if observers is None else observers
        self._clock = seen.clock
        self._news = LoadingNews(seen)
        self._loading: LoadingModels | None = getattr(transport, "loading", None)
        self._client: httpx.AsyncClient | None = None
        self._deadlines: set[Deadline] = set()
        self._closed = False
        self._seen: Mapping[str, Any] = {}  # of the last response

    async def send(self, request: PreparedRequest) -> RawResponse:
        if self._slots is None:
            return await self._exchange(request)
        async with self._slots[request.purpose]:
            return await self._exchange(request)

    async def _exchange(self, request: PreparedRequest) -> RawResponse:
        self._check_open()
        response: httpx.Response | None = None
        try:
            async with self._limit(request) as deadline:
                response = await self._begin(request, deadline)
                receive, most = request.plan_body(response.status_code)
                if receive is None:
                    deadline.extend(ANSWER_SECONDS)
                    body, encoding = await _read_httpx(response, most)
                else:
                    await _hand_over(receive, response, deadline, request.silence_seconds)
                    body, encoding = b"", ""
            content = await unpack(body, encoding, most)
            return RawResponse(request, response.status_code, response.headers, content)
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            httpx.StreamError,
            TimeoutError,
            ValueError,
        ) as error:
            failure = _to_failure(request, error, has_begun=response is not None)
        self._check_open()
        raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")

    @asynccontextmanager
    async def _limit(self, request: PreparedRequest) -> AsyncGenerator[Deadline]:
        """Limit the block: the transport may know no timeouts, nor report when a large body has
        been sent.
        """
        sending = 0.0 if request.nbytes <= INLINE_NBYTES else ANSWER_SECONDS
        async with self._clock.deadline(
            request.connect_seconds + request.silence_seconds + sending
        ) as deadline:
            self._deadlines.add(deadline)
            try:
                yield deadline
            finally:
                self._deadlines.discard(deadline)

    async def _begin(self, request: PreparedRequest, deadline: Deadline) -> httpx.Response:
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self.transport,
                follow_redirects=False,
                trust_env=False,
                headers={"Accept-Encoding": ACCEPTED_ENCODINGS},
            )
        timeout = httpx.Timeout(request.silence_seconds, connect=request.connect_seconds)
        headers = (
            {**request.headers, "Content-Length": str(request.nbytes)}
            if request.body
            else dict(request.headers)
        )
        built = self._client.build_request(
            request.method, request.url, headers=headers, content=_content(request), timeout=timeout
        )
        with self._news.follow(deadline, self._loading):
            response = await self._client.send(built, stream=True)
        self._seen = response.extensions
        return response

    async def aclose(self) -> None:
        self._closed = True
        for deadline in self._deadlines:
            deadline.expire()
        if self._client is not None:
            await self._client.aclose()

    def describe(self) -> list[ConnectionFacts]:
        engine = f"httpx {metadata.version('httpx')} with {type(self.transport).__name__}"
        stream = self._seen.get("network_stream")
        if stream is None:
            return [ConnectionFacts(engine)]
        secured, version = (
            stream.get_extra_info("ssl_object"),
            self._seen.get("http_version", b"").decode(),
        )
        return [messages.describe_connection(engine, version, secured, None)]


def _to_failure(request: PreparedRequest, error: Exception, *, has_begun: bool) -> ExchangeFailed:
    """Describe a failure; ``has_begun`` says that the head of a response had come."""
    if type(error) is TimeoutError and error.args:
        return ExchangeFailed(str(error), timed_out=True)  # of a deadline that says why it was held
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return late(request, has_begun, is_trickling=type(error) is TimeoutError)
    if (refusal := messages.explain_handshake(error, request.url)) is not None:
        return refusal
    return ExchangeFailed(
        f"{type(error).__name__}: {error}", never_connected=isinstance(error, httpx.ConnectError)
    )


def _content(request: PreparedRequest) -> bytes | AsyncIterator[bytes]:
    return b"".join(request.body) if request.nbytes <= INLINE_NBYTES else _pieces(request)


async def _pieces(request: PreparedRequest) -> AsyncIterator[bytes]:
    """Return the body piece by piece: the files of a form are read as they are sent."""
    for piece in request.body:
        yield bytes(piece)


async def _hand_over(
    receive: Receive, response: httpx.Response, deadline: Deadline, silence_seconds: float
) -> None:
    """Hand over the body as it arrives. There is no total time limit, only a limit
    for each piece.
    """

    async def pieces() -> AsyncIterator[bytes]:
        deadline.extend(silence_seconds)
        async for piece in response.aiter_raw():
            yield piece
            deadline.extend(silence_seconds)

    try:
        await receive(
            response.headers, _read_all(response) if response.is_stream_consumed else pieces()
        )
    finally:
        await response.aclose()


async def _read_all(response: httpx.Response) -> AsyncIterator[bytes]:
    yield response.content


async def _read_httpx(response: httpx.Response, most: int) -> tuple[bytes, str]:
    """Return the body and its encoding. A transport that has already read the body has also decoded
    it.
    """
    if response.is_stream_consumed:
        return response.content, ""
    received = bytearray()
    try:
        check_size(0, most, response.headers.get("Content-Length", ""))
        async for piece in response.aiter_raw():
            received += piece
            check_size(len(received), most)
    finally:
        await response.aclose()
    return bytes(received), response.headers.get("Content-Encoding", "")


def open_files_client(transport: httpx.AsyncBaseTransport) -> httpx.AsyncClient:
    """Return a client for files behind signed URLs, which follows redirects."""
    return httpx.AsyncClient(
        follow_redirects=True,
        max_redirects=5,
        trust_env=False,
        timeout=httpx.Timeout(Purpose.SESSION.read_seconds, connect=CONNECT_SECONDS),
        transport=transport,
    )


class LoadingModels(Protocol):
    """Reports the models that a server in this process is loading."""

    def watch(self, listener: Callable[[str | None], object], /) -> None:
        """Call the listener, in any thread, with what loads now, and again with each change."""
        ...

    def unwatch(self, listener: Callable[[str | None], object], /) -> None:
        """Stop calling the listener."""
        ...


class LoadingNews:
    """Holds the deadlines of requests while a model loads, and reports it once, however many
    requests wait.
    """

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._what: str | None = None
        self._began = 0.0
        self._followers = 0
        self._next_line: Timer | None = None

    @contextmanager
    def follow(self, deadline: Deadline, models: LoadingModels | None) -> Generator[None]:
        """Let the time of loading count against ``LOADING_SECONDS`` in the block, instead of the
        deadline's own.
        """
        if models is None:
            yield
            return
        loop = asyncio.get_running_loop()

        def listen(what: str | None) -> None:
            loop.call_soon_threadsafe(self._note, what, deadline)

        self._followers += 1
        models.watch(listen)
        try:
            yield
        finally:
            models.unwatch(listen)
            self._followers -= 1
            if not self._followers:
                self._forget()

    def _note(self, what: str | None, deadline: Deadline) -> None:
        if what is None:
            deadline.release()
        else:
            deadline.hold(
                LOADING_SECONDS,
                f"{what} did not load within {LOADING_SECONDS:g} s; the next request waits again",
            )
        if what != self._what and self._followers:
            self._report(what)

    def _report(self, what: str | None) -> None:
        clock = self._observers.clock
        if self._what is not None:
            self._observers.notify(
                ModelLoading(what=self._what, seconds=clock.monotonic() - self._began)
            )
            self._forget()
        if what is not None:
            self._what, self._began = what, clock.monotonic()
            self._observers.notify(ModelLoading(what=what))
            self._next_line = clock.call_later(LOADING_NEWS_SECONDS, self._log)

    def _forget(self) -> None:
        """Stop logging: the model has loaded, or no request is waiting for it."""
        self._what = None
        if self._next_line is not None:
            self._next_line.cancel()

    def _log(self) -> None:
        clock = self._observers.clock
        logger.warning(
            "still loading %s, %.0f s so far", self._what, clock.monotonic() - self._began
        )
        self._next_line = clock.call_later(LOADING_NEWS_SECONDS, self._log)
