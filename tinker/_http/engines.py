"""Connections: by purpose, their number and time-outs, and the two engines below one seam.

aiohttp carries the exchanges with a server; httpx carries those of an injected transport and of the server in this process.
Nothing above this file knows which.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import importlib
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, cast

import attrs
import msgspec

from tinker._clock import Clock, Deadline
from tinker._config import Proxies
from tinker._http.closing import check_open
from tinker._http.unpacking import ACCEPTED_ENCODINGS, unpacked
from tinker._wire.bodies import AT_ONCE, Piece

if TYPE_CHECKING:
    import aiohttp
    import httpx
    from yarl import URL

    from tinker._config import Config

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 600.0  # for the body of an answer whose head has come, so that one that trickles in ends as well
MAX_ANSWER_NBYTES = 2 << 30
_LONGEST_REASON = 500  # characters of what a failure says about itself, which may be the server's words


class Purpose(enum.Enum):
    """What a connection is for: (connections at once, seconds without a byte before it counts as dead)."""

    UPLOAD = (8, 120.0)
    SAMPLE = (512, 60.0)
    POLL = (1000, 45.0)  # servers hold a poll for up to 40 s
    SESSION = (8, 60.0)
    START = (8, 20.0)  # tried for a minute: a connection that has died must leave time for others
    HEARTBEAT = (2, 10.0)

    @property
    def connections(self) -> int:
        """Most connections at once; more exchanges wait for one."""
        return self.value[0]

    @property
    def read_seconds(self) -> float:
        """Longest silence of the server."""
        return self.value[1]

    @property
    def pool(self) -> Purpose:
        """The purpose whose connections are used: what starts a session warms those for what follows."""
        return Purpose.SESSION if self is Purpose.START else self


@attrs.frozen(kw_only=True)
class Call:
    """One exchange to make. ``body`` is in pieces, which may be sent one by one; ``record`` is what it was made of, for JSON.

    ``headers`` may hold secrets: those of ``private`` (lower case) are the user's. So may ``url``; ``shown_url`` does not. A
    body that is ``confined`` holds one too, and is not sent to another server by a redirect. ``silence_seconds`` is how long
    the server may say nothing.
    """

    method: str
    url: str = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)
    shown_url: str = attrs.field(default=attrs.Factory(lambda call: call.url, takes_self=True))
    private: frozenset[str] = frozenset()
    body: tuple[Piece, ...] = attrs.field(default=(), repr=False)
    record: msgspec.Struct | None = attrs.field(default=None, repr=False)
    purpose: Purpose = Purpose.SESSION
    follows_redirects: bool = True
    confined: bool = False
    silence_seconds: float = attrs.field(default=attrs.Factory(lambda call: call.purpose.read_seconds, takes_self=True))

    @property
    def nbytes(self) -> int:
        """Length of the body."""
        return sum(map(len, self.body))


@attrs.frozen
class Answer:
    """What came back, read completely; header names are found in any case."""

    status: int
    headers: Mapping[str, str]
    content: bytes = attrs.field(repr=False)

    @property
    def media_type(self) -> str:
        """The media type without parameters, lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class ExchangeFailed(Exception):
    """No complete answer came. ``timed_out``: not in time; ``never_connected``: nothing can have arrived either."""

    def __init__(self, message: str, *, timed_out: bool = False, never_connected: bool = False) -> None:
        super().__init__(readable(message)[:_LONGEST_REASON])
        self.timed_out = timed_out
        self.never_connected = never_connected


def readable(text: str) -> str:
    """Text that any encoding can write: header bytes that are not UTF-8 arrive as surrogates, which none can."""
    return text.encode("utf-8", "backslashreplace").decode()


class Exchange(Protocol):
    """The seam: one call in, one answer out, ExchangeFailed when none comes, ClientClosedError once it is closed.

    Redirects are answers.
    """

    async def __call__(self, call: Call) -> Answer:
        """Make the exchange."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


def open_exchange(config: Config, transport: httpx.AsyncBaseTransport | None = None, clock: Clock | None = None) -> Exchange:
    """The exchange for these settings; makes no connection yet. Call it anywhere, use it on the loop only."""
    if transport is not None:
        return HttpxExchange(transport, clock)
    if config.is_local:
        return HttpxExchange(_local_transport(config), clock)
    return AiohttpExchange(config.proxies)


def _local_transport(config: Config) -> httpx.AsyncBaseTransport:
    """The server of this process. Imported by name: the client never depends on it otherwise."""
    import httpx

    local = importlib.import_module("tinker.local")
    app: Any = local.in_process_app(config.base_url, data_dir=config.local_dir)
    return httpx.ASGITransport(app)


@attrs.frozen
class _Pool:
    """An aiohttp session, and the slots for exchanges over it. Waiting for a slot is not waiting for the server."""

    session: aiohttp.ClientSession
    slots: asyncio.Semaphore


class AiohttpExchange:
    """One pool for each purpose, opened on first use."""

    def __init__(self, proxies: Proxies | None = None) -> None:
        self._proxies = proxies or Proxies()
        self._pools: dict[Purpose, _Pool] = {}
        self._closed = False

    async def __call__(self, call: Call) -> Answer:
        check_open(self._closed)
        phase = _Phase(call)
        try:
            return await self._answer(call, self._pools.get(call.purpose.pool) or self._open(call.purpose.pool), phase)
        except Exception as error:  # noqa: BLE001 - whatever the engine makes of what a server sends
            failure = phase.failure(error)
        check_open(self._closed)
        raise failure  # here, so that it is without the engine's error, which holds the request's headers, and its frames

    async def _answer(self, call: Call, pool: _Pool, phase: _Phase) -> Answer:
        proxy = self._proxies.of(call.url)
        headers, tunnel_headers = _headers(call, proxy)
        async with (
            pool.slots,
            asyncio.timeout(_connect_seconds(call) + call.silence_seconds) as limit,
            pool.session.request(
                call.method,
                _url(call.url),
                data=_payload(call, limit),
                headers=headers,
                allow_redirects=False,
                proxy=None if proxy is None else _proxy_url(proxy),
                proxy_headers=tunnel_headers,
                timeout=_timeout(call.silence_seconds),
            ) as response,
        ):
            phase.has_begun = True
            _limit(limit, ANSWER_SECONDS)
            headers_of_answer = cast("Mapping[str, str]", response.headers)
            body = await _read(response)
        return Answer(response.status, headers_of_answer, await unpacked(body, headers_of_answer.get("Content-Encoding", "")))

    def _open(self, purpose: Purpose) -> _Pool:
        import aiohttp

        connections = min(purpose.connections, _spare_descriptors())
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=1 << 20,
            auto_decompress=False,
            headers={"Accept-Encoding": ACCEPTED_ENCODINGS},
        )
        pool = self._pools[purpose] = _Pool(session, asyncio.Semaphore(connections))
        return pool

    async def aclose(self) -> None:
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.session.close()


@attrs.define
class _Phase:
    """How far an exchange has come, which says what its failure means."""

    call: Call
    has_begun: bool = False

    def failure(self, error: Exception) -> ExchangeFailed:
        """What is told about what went wrong."""
        import aiohttp
        import httpx

        if isinstance(error, TimeoutError | httpx.TimeoutException):
            return ExchangeFailed(self._lateness(error), timed_out=True)
        if isinstance(error, aiohttp.ClientConnectorError):
            return ExchangeFailed(_unreachable(error), never_connected=True)
        said = error.message if isinstance(error, aiohttp.ClientResponseError) else error  # which shows the whole address
        return ExchangeFailed(f"{type(error).__name__}: {said}", never_connected=isinstance(error, httpx.ConnectError))

    def _lateness(self, error: Exception) -> str:
        if not self.has_begun:
            return f"no answer within {self.call.silence_seconds:g} s"
        if type(error) is TimeoutError:  # ours; engines have classes of their own for a server that sends nothing
            return f"the answer began to come and was not complete after {ANSWER_SECONDS:g} s"
        return f"the answer began to come and then nothing more for {self.call.silence_seconds:g} s"


def _connect_seconds(call: Call) -> float:
    return min(CONNECT_SECONDS, call.silence_seconds)


def _unreachable(error: aiohttp.ClientConnectorError) -> str:
    """In the words of the system, where it has some: TLS has its own, and so have names that nobody knows."""
    failure = error.os_error
    if isinstance(failure, ssl.SSLError) or not failure.errno:
        return f"{type(error).__name__}: {error}"
    why = os.strerror(failure.errno) if failure.errno > 0 else failure.strerror
    return f"cannot connect to {error.host}:{error.port}: {why}"


def _payload(call: Call, limit: asyncio.Timeout) -> Piece | AsyncIterator[Piece] | None:
    if not call.body:
        return None
    return call.body[0] if len(call.body) == 1 and call.nbytes <= AT_ONCE else _pieces(call, limit)


async def _pieces(call: Call, limit: asyncio.Timeout) -> AsyncIterator[Piece]:
    """The body, of which each piece must be taken in time: a server that stops reading ends the exchange, too."""
    for piece in call.body:
        _limit(limit, call.silence_seconds)
        yield piece
    _limit(limit, call.silence_seconds)  # for the whole head of the answer, so that one that trickles in ends as well


def _limit(limit: asyncio.Timeout, seconds: float) -> None:
    """End the exchange after so many seconds, unless it is over, as by an answer that came early."""
    with contextlib.suppress(RuntimeError):
        limit.reschedule(asyncio.get_running_loop().time() + seconds)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, as it was sent. A length beyond the limit, announced or met, fails the exchange."""
    if (response.content_length or 0) > MAX_ANSWER_NBYTES:
        raise ValueError(f"the answer is larger than {MAX_ANSWER_NBYTES} bytes")
    if response.content_length is not None:
        return await response.read()
    received = bytearray()
    async for piece in response.content.iter_any():
        _extend(received, piece)
    return bytes(received)


def _extend(received: bytearray, piece: bytes) -> None:
    received += piece
    if len(received) > MAX_ANSWER_NBYTES:
        raise ValueError(f"the answer is larger than {MAX_ANSWER_NBYTES} bytes")


def _headers(call: Call, proxy: str | None) -> tuple[Mapping[str, str], Mapping[str, str] | None]:
    """The headers of the exchange, and of the tunnel to its server: a proxy's password is in those that the proxy reads."""
    credential = None if proxy is None else _credential(proxy)
    if credential is None or call.url.startswith("https:"):
        return call.headers, credential
    return {**call.headers, **credential}, None


@lru_cache
def _proxy_url(proxy: str) -> URL:
    """Without name and password: errors show the address."""
    return _url(proxy).with_user(None)


@lru_cache
def _credential(proxy: str) -> Mapping[str, str] | None:
    url = _url(proxy)
    if url.user is None:
        return None
    basic = base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {basic}"}


@lru_cache(maxsize=512)
def _url(url: str) -> URL:
    """Parsed once: a client asks few different URLs. Encoded already; `:` and `/` in ids stay as they are."""
    from yarl import URL

    return URL(url, encoded=True)


@lru_cache
def _timeout(silence_seconds: float) -> aiohttp.ClientTimeout:
    import aiohttp

    connect = min(CONNECT_SECONDS, silence_seconds)
    return aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=silence_seconds)


@lru_cache(maxsize=1)
def _spare_descriptors() -> int:
    """Half of what the process may have open; two pools may be full at once."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(16, soft // 2 - 32)
    except (ImportError, OSError, ValueError):
        return 256


class HttpxExchange:
    """An httpx transport: one that was injected, or the ASGI application of this process."""

    def __init__(self, transport: httpx.AsyncBaseTransport, clock: Clock | None = None) -> None:
        self._transport = transport
        self._clock = clock or Clock()
        self._client: httpx.AsyncClient | None = None
        self._deadlines: set[Deadline] = set()
        self._closed = False

    async def __call__(self, call: Call) -> Answer:
        import httpx

        check_open(self._closed)
        phase = _Phase(call)
        try:
            return await self._answer(call, phase)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, TimeoutError, ValueError) as error:
            failure = phase.failure(error)
        check_open(self._closed)
        raise failure

    async def _answer(self, call: Call, phase: _Phase) -> Answer:
        """The transport may know no timeouts, nor tell when a large body has been sent."""
        sending = 0.0 if call.nbytes <= AT_ONCE else ANSWER_SECONDS
        async with self._clock.deadline(_connect_seconds(call) + call.silence_seconds + sending) as deadline:
            self._deadlines.add(deadline)
            try:
                response = await self._begun(call)
                phase.has_begun = True
                deadline.extend(ANSWER_SECONDS)
                body, encoding = await _read_httpx(response)
            finally:
                self._deadlines.discard(deadline)
        return Answer(response.status_code, response.headers, await unpacked(body, encoding))

    async def _begun(self, call: Call) -> httpx.Response:
        import httpx

        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._transport,
                follow_redirects=False,
                trust_env=False,
                headers={"Accept-Encoding": ACCEPTED_ENCODINGS},
            )
        timeout = httpx.Timeout(call.silence_seconds, connect=_connect_seconds(call))
        request = self._client.build_request(
            call.method, call.url, headers=dict(call.headers), content=b"".join(call.body), timeout=timeout
        )
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        self._closed = True
        for deadline in self._deadlines:
            deadline.expire()
        if self._client is not None:
            await self._client.aclose()

    def files(self) -> httpx.AsyncClient:
        """A client over the same transport, not to be closed."""
        return _files_client(transport=self._transport)


async def _read_httpx(response: httpx.Response) -> tuple[bytes, str]:
    """The body and how it is packed; a transport that has read it already has unpacked it, too."""
    if response.is_stream_consumed:
        return response.content, ""
    received = bytearray()
    try:
        async for piece in response.aiter_raw():
            _extend(received, piece)
    finally:
        await response.aclose()
    return bytes(received), response.headers.get("Content-Encoding", "")


@contextlib.asynccontextmanager
async def open_files(exchange: Exchange, config: Config) -> AsyncGenerator[httpx.AsyncClient]:
    """A client for files behind signed URLs: it has no credentials and follows redirects."""
    if isinstance(exchange, HttpxExchange):
        yield exchange.files()
        return
    from tinker._http.proxied import ProxiedTransport

    async with _files_client(transport=ProxiedTransport(config.proxies)) as client:
        yield client


def _files_client(**how: Any) -> httpx.AsyncClient:
    import httpx

    timeout = httpx.Timeout(Purpose.SESSION.read_seconds, connect=CONNECT_SECONDS)
    return httpx.AsyncClient(follow_redirects=True, max_redirects=5, trust_env=False, timeout=timeout, **how)
