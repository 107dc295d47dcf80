"""The httpx engine: an injected transport, or the server of this process; and the client for files.

A server in this process may load its model first. On a busy machine, importing torch alone can take
longer than the response timeout, so loading has a timeout of its own, and is reported to observers
and the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib import metadata
from typing import Any, Protocol

import httpx

from tinker._clock import Clock, Deadline, Timer
from tinker._http import trust
from tinker._http.messages import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    ConnectionFacts,
    ExchangeFailed,
    PreparedRequest,
    Purpose,
    RawResponse,
    Receive,
    check_size,
    late,
)
from tinker._http.observers import Observers
from tinker._http.unpacking import ACCEPTED_ENCODINGS, unpack
from tinker._wire import INLINE_NBYTES
from tinker.errors import ClientClosedError
from tinker.observing import ModelLoading

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
                body, encoding = await _receive(request, response, deadline)
            content = await unpack(body, encoding, request.limit_of(response.status_code))
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
        return [trust.describe_connection(engine, version, secured, None)]


def _to_failure(request: PreparedRequest, error: Exception, *, has_begun: bool) -> ExchangeFailed:
    """Describe a failure; ``has_begun`` says that the head of a response had come."""
    if type(error) is TimeoutError and error.args:
        return ExchangeFailed(str(error), timed_out=True)  # of a deadline that says why it was held
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return late(request, has_begun, is_trickling=type(error) is TimeoutError)
    if (refusal := trust.explain_handshake(error, request.url)) is not None:
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


async def _receive(
    request: PreparedRequest, response: httpx.Response, deadline: Deadline
) -> tuple[bytes, str]:
    """Return the body and its encoding; nothing of a body that the receiver of the
    request takes.
    """
    if (receive := request.receiver_of(response.status_code)) is not None:
        await _hand_over(receive, response, deadline, request.silence_seconds)
        return b"", ""
    deadline.extend(ANSWER_SECONDS)
    return await _read_httpx(response, request.limit_of(response.status_code))


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
    timeout = httpx.Timeout(Purpose.SESSION.read_seconds, connect=CONNECT_SECONDS)
    return httpx.AsyncClient(
        follow_redirects=True,
        max_redirects=5,
        trust_env=False,
        timeout=timeout,
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
