"""The httpx engine: an injected transport, or the server of this process; and the client for files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec

from tinker._clock import Clock, Deadline
from tinker._http import trust
from tinker._http.loading import FOLLOW_LOADING, LoadingNews
from tinker._http.messages import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    ConnectionFacts,
    ExchangeFailed,
    PreparedRequest,
    Purpose,
    RawResponse,
    Receive,
    extend,
    late,
)
from tinker._http.observers import Observers
from tinker._http.unpacking import ACCEPTED_ENCODINGS, unpack
from tinker._wire import INLINE_NBYTES
from tinker.errors import ClientClosedError

if TYPE_CHECKING:
    import httpx


class Phase(msgspec.Struct):
    """The progress of an exchange through httpx."""

    request: PreparedRequest
    has_begun: bool = False

    def failure(self, error: Exception) -> ExchangeFailed:
        """Describe a failure."""
        import httpx

        if type(error) is TimeoutError and error.args:
            return ExchangeFailed(str(error), timed_out=True)  # of a deadline that says why it was held
        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return late(self.request, self.has_begun, is_trickling=type(error) is TimeoutError)
        if (refusal := trust.explain_handshake(error, self.request.url)) is not None:
            return refusal
        return ExchangeFailed(f"{type(error).__name__}: {error}", never_connected=isinstance(error, httpx.ConnectError))


class HttpxEngine:
    """An httpx transport: one that was injected, or the ASGI application of this process. ``slots`` limit the exchanges."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        observers: Observers | None = None,
        slots: Mapping[Purpose, asyncio.Semaphore] | None = None,
    ) -> None:
        self._transport = transport
        self._slots = slots
        seen = Observers(Clock()) if observers is None else observers  # which is false while it is empty
        self._clock = seen.clock
        self._news = LoadingNews(seen)
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
        import httpx

        self._check_open()
        phase = Phase(request)
        try:
            return await self._answer(request, phase)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, TimeoutError, ValueError) as error:
            failure = phase.failure(error)
        self._check_open()
        raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")

    async def _answer(self, request: PreparedRequest, phase: Phase) -> RawResponse:
        """The transport may know no timeouts, nor tell when a large body has been sent."""
        sending = 0.0 if request.nbytes <= INLINE_NBYTES else ANSWER_SECONDS
        async with self._clock.deadline(request.connect_seconds + request.silence_seconds + sending) as deadline:
            self._deadlines.add(deadline)
            try:
                response = await self._begin(request, deadline)
                phase.has_begun = True
                if (receive := request.receiver_of(response.status_code)) is not None:
                    await _hand_over(receive, response, deadline, request.silence_seconds)
                    return RawResponse(request, response.status_code, response.headers, b"")
                deadline.extend(ANSWER_SECONDS)
                body, encoding = await _read_httpx(response)
            finally:
                self._deadlines.discard(deadline)
        return RawResponse(request, response.status_code, response.headers, await unpack(body, encoding))

    async def _begin(self, request: PreparedRequest, deadline: Deadline) -> httpx.Response:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._transport,
                follow_redirects=False,
                trust_env=False,
                headers={"Accept-Encoding": ACCEPTED_ENCODINGS},
            )
        timeout = httpx.Timeout(request.silence_seconds, connect=request.connect_seconds)
        headers = {**request.headers, "Content-Length": str(request.nbytes)} if request.body else dict(request.headers)
        built = self._client.build_request(
            request.method, request.url, headers=headers, content=_content(request), timeout=timeout
        )
        built.extensions[FOLLOW_LOADING] = partial(self._news.follow, deadline)
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
        engine = f"httpx {metadata.version('httpx')} with {type(self._transport).__name__}"
        stream = self._seen.get("network_stream")
        if stream is None:
            return [ConnectionFacts(engine)]
        secured, version = stream.get_extra_info("ssl_object"), self._seen.get("http_version", b"").decode()
        return [trust.describe_connection(engine, version, secured, None)]

    def files(self) -> httpx.AsyncClient:
        """Return a client over the same transport, not to be closed."""
        return open_files_client(transport=self._transport)


def _content(request: PreparedRequest) -> bytes | AsyncIterator[bytes]:
    return b"".join(request.body) if request.nbytes <= INLINE_NBYTES else _pieces(request)


async def _pieces(request: PreparedRequest) -> AsyncIterator[bytes]:
    """Return the body piece by piece: the files of a form are read as they are sent."""
    for piece in request.body:
        yield bytes(piece)


async def _hand_over(receive: Receive, response: httpx.Response, deadline: Deadline, silence_seconds: float) -> None:
    """Hand over the body as it arrives. There is no total time limit, only a limit for each piece."""

    async def pieces() -> AsyncIterator[bytes]:
        deadline.extend(silence_seconds)
        async for piece in response.aiter_raw():
            yield piece
            deadline.extend(silence_seconds)

    try:
        await receive(response.headers, _read_all(response) if response.is_stream_consumed else pieces())
    finally:
        await response.aclose()


async def _read_all(response: httpx.Response) -> AsyncIterator[bytes]:
    yield response.content


async def _read_httpx(response: httpx.Response) -> tuple[bytes, str]:
    """Return the body and its encoding. A transport that has already read the body has also decoded it."""
    if response.is_stream_consumed:
        return response.content, ""
    received = bytearray()
    try:
        async for piece in response.aiter_raw():
            extend(received, piece)
    finally:
        await response.aclose()
    return bytes(received), response.headers.get("Content-Encoding", "")


def open_files_client(**how: Any) -> httpx.AsyncClient:
    import httpx

    timeout = httpx.Timeout(Purpose.SESSION.read_seconds, connect=CONNECT_SECONDS)
    return httpx.AsyncClient(follow_redirects=True, max_redirects=5, trust_env=False, timeout=timeout, **how)
