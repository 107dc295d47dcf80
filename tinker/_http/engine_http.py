"""The engine for servers: connections of our own, how they are opened, and their pool."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import errno
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Generator, Mapping
from contextvars import Context
from copy import copy
from functools import cached_property, lru_cache, partial
from importlib import metadata
from types import MappingProxyType
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import attrs
from httpunk import HeaderMap, HTTPunkError, Request
from httpunk.asyncio import H1ClientProtocol

from tinker._basics.config import PORTS, Proxies, Trust, is_loopback
from tinker._http import messages
from tinker._http.connections import STREAMS, Exchange, Http1Connection, Http2Connection
from tinker._http.limits import open_slots
from tinker._http.messages import (
    CONNECT_SECONDS,
    IDLE_SECONDS,
    ConnectionFacts,
    ExchangeFailed,
    PreparedRequest,
    Purpose,
    RawResponse,
    describe_connection,
    unpack,
)
from tinker._http.retry import (
    PROXY_HINT,
    PROXY_UNAUTHENTICATED_STATUS,
    is_retryable_status,
    is_success,
)
from tinker._wire import INLINE_NBYTES
from tinker.errors import ClientClosedError

HttpConnection: TypeAlias = Http1Connection | Http2Connection

# The delay before the next of several addresses is tried in parallel with one that does not
# respond.
_NEXT_ADDRESS_SECONDS = 0.25
# The time after which a connection ends whose peer does not acknowledge bytes or answer probes.
_DEAD_SECONDS = 20
_PROBE_SECONDS, _PROBES = 5, 3


#: The application protocols, best first.
BOTH = ("h2", "http/1.1")


class _NoCommonProtocolError(Exception):
    """The server speaks other application protocols than were offered."""


class DialFailed(ExchangeFailed):
    """No connection could be made; ``is_wrong`` where the address or the trust settings are
    probably wrong.
    """

    def __init__(
        self,
        message: str,
        *,
        timed_out: bool = False,
        is_wrong: bool = False,
        says_what_to_do: bool = False,
    ) -> None:
        super().__init__(
            message,
            timed_out=timed_out,
            never_connected=True,
            wrong_address=is_wrong,
            says_what_to_do=says_what_to_do,
        )


def late(where: str, seconds: float) -> DialFailed:
    """Describe a connection that took too long."""
    return DialFailed(f"could not connect to {where} within {seconds:g} s", timed_out=True)


@attrs.frozen(slots=False)
class Dialer:
    """Opens connections to one origin, directly or through its proxy."""

    origin: str
    proxy: str | None
    proxy_headers: Mapping[str, str]
    trust: Trust
    protocols: tuple[str, ...] = BOTH
    _known: dict[str, str] = attrs.field(factory=dict[str, str], init=False)

    @cached_property
    def _address(self) -> SplitResult:
        return urlsplit(self.origin)

    @property
    def _is_secure(self) -> bool:
        return self._address.scheme == "https"

    @property
    def may_share(self) -> bool:
        """Return whether a connection may carry several exchanges at once."""
        return self._is_secure and "h2" in self.protocols

    @cached_property
    def where(self) -> str:
        """Return the host and port that are connected to."""
        return _where(self._address if self.proxy is None else urlsplit(self.proxy))

    async def dial(self) -> HttpConnection:
        """Open a connection, in at most ``CONNECT_SECONDS``. Raises DialFailed."""
        try:
            where = self.where
        except ValueError as error:
            raise DialFailed(
                f"{self.origin} is not the address of a server: {error}", is_wrong=True
            ) from None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                chooser = await self._connect()
        except TimeoutError:
            raise late(where, CONNECT_SECONDS) from None
        except _NoCommonProtocolError:
            return await attrs.evolve(self, protocols=BOTH).dial()
        except (OSError, ValueError) as error:
            message = f"could not connect to {where}: {_reason(error)}"
            raise DialFailed(message, is_wrong=_is_wrong(error, where)) from None
        return chooser.connection

    async def _connect(self) -> _Chooser:
        address, chooser = self._address, _Chooser(self)
        context = self.trust.context(*self.protocols) if self._is_secure else None
        proxy = None if self.proxy is None else urlsplit(self.proxy)
        if proxy is None:
            await self._open(chooser, address, context)
        elif proxy.scheme.startswith("socks"):
            await self._open(
                chooser, address, context, await _dial_socks(proxy, _host(address), _port(address))
            )
        elif context is None:
            await self._open(chooser, proxy, self._proxy_context)
        else:
            await self._open_tunnel(chooser, proxy, context)
        return chooser

    async def _open_tunnel(
        self, chooser: _Chooser, proxy: SplitResult, context: ssl.SSLContext
    ) -> None:
        """Open a connection through an HTTP proxy, with TLS between here and the server."""
        tunnel, where = _Tunnel(), _where(self._address)
        transport = await self._open(tunnel, proxy, self._proxy_context)
        try:
            status = await tunnel.ask(where, {**_credential(proxy), **self.proxy_headers})
            if not is_success(status):
                raise _refusal(
                    f"the proxy {self.where} answered the request for {where} with {status}", status
                )
        except BaseException:
            transport.abort()
            raise
        with self._checking(self._address):
            inner = await asyncio.get_running_loop().start_tls(
                transport, chooser, context, server_hostname=_host(self._address)
            )
        assert inner is not None
        chooser.connection_made(inner)

    async def _open(
        self,
        protocol: asyncio.Protocol,
        address: SplitResult,
        context: ssl.SSLContext | None,
        sock: socket.socket | None = None,
    ) -> asyncio.Transport:
        """Open a connection to an address, or on a socket."""
        name = None if context is None else _host(address)
        with self._checking(address):
            if sock is None:
                transport = await self._open_known(protocol, address, context, name)
            else:
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_connection(
                    lambda: protocol, sock=sock, ssl=context, server_hostname=name
                )
        _watch_for_silence(transport.get_extra_info("socket"))
        return transport

    async def _open_known(
        self,
        protocol: asyncio.Protocol,
        address: SplitResult,
        context: ssl.SSLContext | None,
        name: str | None,
    ) -> asyncio.Transport:
        """Open a connection to a host. The one of its addresses that answered is used until it does
        so no more.
        """
        host = _host(address)
        known = self._known.get(host)
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: protocol,
                known or host,
                _port(address),
                ssl=context,
                server_hostname=name,
                happy_eyeballs_delay=None if known else _NEXT_ADDRESS_SECONDS,
            )
        except BaseException:
            self._known.pop(host, None)
            raise
        if (peer := transport.get_extra_info("peername")) is not None:
            self._known[host] = peer[0]
        return transport

    @contextlib.contextmanager
    def _checking(self, address: SplitResult) -> Generator[None]:
        """Describe a handshake that fails. Raises DialFailed."""
        try:
            yield
        except ssl.SSLError as error:
            setting = (
                "base_url (TINKER_BASE_URL)"
                if address is self._address
                else "the address of the proxy (TINKER_PROXY)"
            )
            if messages.lacks_protocol(error) and self.protocols != BOTH:
                raise _NoCommonProtocolError from None
            message = messages.describe(error, _where(address), setting)
            raise DialFailed(
                message, is_wrong=messages.is_lasting(error), says_what_to_do=True
            ) from None

    @property
    def _proxy_context(self) -> ssl.SSLContext | None:
        return (
            self.trust.context("http/1.1")
            if self.proxy is not None and self.proxy.startswith("https:")
            else None
        )

    def make_connection(self, protocol: str | None) -> HttpConnection:
        """Return the connection for an application protocol."""
        authority = self._address.netloc
        if protocol == "h2":
            return Http2Connection(authority)
        if self.proxy is None or self._is_secure or self.proxy.startswith("socks"):
            return Http1Connection(authority)
        return Http1Connection(
            authority, self.origin, {**_credential(urlsplit(self.proxy)), **self.proxy_headers}
        )


class _Chooser(asyncio.Protocol):
    """The protocol of a new connection until it is known which one both sides speak."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.connection = self._dialer.make_connection(
            None if secured is None else secured.selected_alpn_protocol()
        )
        self.connection.secured = secured
        assert isinstance(transport, asyncio.Transport)
        transport.set_protocol(self.connection)
        self.connection.connection_made(transport)
        for data in self._early:
            self.connection.data_received(data)
        if transport.is_closing():  # before anybody knew which protocol it was
            self.connection.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)


class _Tunnel(H1ClientProtocol):
    """Asks a proxy for a connection to a server."""

    async def ask(self, where: str, headers: Mapping[str, str]) -> int:
        """Ask for the connection, and return the status of the response. Raises ConnectionError
        without a response.
        """
        asked = HeaderMap({"Host": where, **headers}.items())
        try:
            connection = await self.ready()
            return (await connection.send_request(Request("CONNECT", where, headers=asked))).status
        except HTTPunkError as error:
            raise ConnectionError(f"the proxy sent no answer: {error}") from None

    def eof_received(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Close, because asyncio has no half-closed connections over TLS."""
        super().eof_received()  # type: ignore[no-untyped-call]


async def _dial_socks(proxy: SplitResult, host: str, port: int) -> socket.socket:
    """Open a connection through a SOCKS proxy, which looks up the host. Raises DialFailed if it
    refuses.
    """
    try:
        from python_socks import ProxyError, ProxyType
        from python_socks.async_.asyncio import Proxy
    except ImportError:
        from tinker._basics.installation import install_command

        raise DialFailed(
            f"a SOCKS proxy needs another package: {install_command('socks')}", says_what_to_do=True
        ) from None
    name, password = (unquote(part or "") for part in (proxy.username, proxy.password))
    try:
        return await Proxy(
            ProxyType.SOCKS5, _host(proxy), _port(proxy), name, password, rdns=True
        ).connect(host, port)
    except ProxyError as error:
        is_about_credential = error.error_code is None and "uthentication" in str(error)
        status = PROXY_UNAUTHENTICATED_STATUS if is_about_credential else None
        raise _refusal(f"the proxy {_where(proxy)} refused: {error}", status) from None
    except OSError as error:
        raise error.__cause__ or error from None  # the system's error, without the words around it


def _refusal(message: str, status: int | None) -> DialFailed:
    """Return the refusal of a proxy; with some statuses it refuses the next attempt too."""
    if status == PROXY_UNAUTHENTICATED_STATUS:
        return DialFailed(f"{message}: {PROXY_HINT}", is_wrong=True, says_what_to_do=True)
    is_wrong = status is not None and not is_retryable_status(status)
    return DialFailed(
        f"{message}: see proxy (TINKER_PROXY)" if is_wrong else message,
        is_wrong=is_wrong,
        says_what_to_do=True,
    )


def _watch_for_silence(sock: socket.socket) -> None:
    """Let the system end a connection whose peer no longer responds."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_SECONDS),
        ("TCP_KEEPALIVE", _PROBE_SECONDS),  # macOS
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _DEAD_SECONDS * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _host(address: SplitResult) -> str:
    return address.hostname or ""


def _port(address: SplitResult) -> int:
    return address.port or PORTS[address.scheme]


def _where(address: SplitResult) -> str:
    """Return the host and port of an address. Raises ValueError unless it has them."""
    if address.scheme not in PORTS or not address.hostname:
        raise ValueError("it must be http://host[:port] or https://host[:port]")
    host = _host(address)
    return f"[{host}]:{_port(address)}" if ":" in host else f"{host}:{_port(address)}"


def _credential(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    text = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def _reason(error: Exception) -> str:
    """Describe a failure in the system's words; an unknown host name has a separate message."""
    if (
        isinstance(error, OSError)
        and not isinstance(error, socket.gaierror)
        and (numbers := _numbers_of(error))
    ):
        return ", ".join(os.strerror(number) for number in numbers)
    words = error.strerror if isinstance(error, OSError) else None
    return words or str(error) or "it was closed at once"


def _numbers_of(error: OSError) -> list[int]:
    """Return the kinds of failures; those of several addresses arrive as the text of one."""
    if error.errno:
        return [error.errno]
    return list(dict.fromkeys(int(number) for number in _NUMBER.findall(str(error))))


_NUMBER = re.compile(r"\[Errno (\d+)\]")


def _is_wrong(error: Exception, where: str) -> bool:
    """Return whether the host does not exist, or no program of this machine listens
    at the address.
    """
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_NONAME
    refused = isinstance(error, OSError) and _numbers_of(error) == [errno.ECONNREFUSED]
    return refused and is_loopback(where.rpartition(":")[0].strip("[]"))


# -------------------------------------------------------------------- the connections to one origin


class Pool:
    """Connections of one kind to one origin.

    An exchange takes the connection that had room last, so that those that are not needed fall
    idle. Where connections carry many exchanges, only as many are opened as those that wait can
    fill; how many that are, the first connection learns.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._usable: dict[HttpConnection, None] = {}  # which can take another exchange
        self._all: set[HttpConnection] = set()
        self._waiting: deque[asyncio.Future[HttpConnection]] = deque()
        self._dials: set[asyncio.Task[None]] = set()
        # of a new connection; 0 while it is unknown, or the server wants nothing
        self._capacity = 0 if dialer.may_share else 1
        self._sweep: asyncio.TimerHandle | None = None

    def take(self) -> HttpConnection | None:
        """Take a connection that is open; None if a new one is needed."""
        while self._usable:
            connection = next(reversed(self._usable))
            if _has_room(connection):
                connection.used += 1
                return connection
            del self._usable[connection]
            if connection.is_closed:
                self._drop(connection)
        return None

    async def wait(self, seconds: float) -> HttpConnection:
        """Take a connection once one is free or open, in at most so many seconds. Raises
        ExchangeFailed.
        """
        waiter: asyncio.Future[HttpConnection] = self._loop.create_future()
        self._waiting.append(waiter)
        self._dial_enough()
        try:
            async with asyncio.timeout(seconds):
                return await waiter
        except BaseException as error:
            self._abandon(waiter)
            if isinstance(error, TimeoutError):
                raise late(self._dialer.where, seconds) from None
            raise

    def give_back(self, connection: HttpConnection) -> None:
        """Return a connection after an exchange."""
        connection.used -= 1
        connection.idle_since = self._loop.time()
        if connection.is_closed:
            self._drop(connection)
        else:
            self._offer(connection)

    def close(self) -> None:
        """Close every connection, and fail the waiting exchanges."""
        for dial in self._dials:
            dial.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        self._fail_waiting(DialFailed("the client was closed"))
        for connection in tuple(self._all):
            connection.close()
        self._all.clear()
        self._usable.clear()

    @property
    def connections(self) -> frozenset[HttpConnection]:
        """Return the open connections."""
        return frozenset(self._all)

    # -------------------------------------------------------------------------------------- opening

    def _dial_enough(self) -> None:
        if self._capacity:
            wanted = -(-len(self._waiting) // self._capacity)
        else:
            wanted = 0 if any(not connection.is_closed for connection in self._all) else 1
        while len(self._dials) < wanted:
            self._dials.add(self._loop.create_task(self._dial(), name="connect", context=Context()))

    async def _dial(self) -> None:
        current = asyncio.current_task()
        assert current is not None
        try:
            connection = await self._dialer.dial()
        except Exception as error:  # noqa: BLE001 - the waiting exchanges get any error
            failure = (
                error
                if isinstance(error, DialFailed)
                else DialFailed(f"{type(error).__name__}: {error}")
            )
            # Where other connections are being opened, a share of the waiting exchanges is for
            # them.
            self._fail_waiting(
                failure, None if len(self._dials) == 1 else self._capacity or STREAMS
            )
            return
        finally:
            self._dials.discard(current)
        self._all.add(connection)
        connection.idle_since = self._loop.time()
        if self._capacity and not connection.is_settled:
            connection.capacity = self._capacity
        if isinstance(connection, Http2Connection):
            connection.when_settled = partial(self._note_capacity, connection)
        self._note_capacity(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_SECONDS / 3, self._close_idle)

    def _note_capacity(self, connection: HttpConnection) -> None:
        """Use a connection's capacity, and open more connections if that is not enough."""
        if connection.is_settled:
            self._capacity = connection.capacity
        self._offer(connection)
        if self._waiting:
            self._dial_enough()

    def _offer(self, connection: HttpConnection) -> None:
        """Give the connection to waiting exchanges first, and its remaining
        capacity to new ones.
        """
        while self._waiting and _has_room(connection):
            waiter = self._waiting.popleft()
            if not waiter.done():
                connection.used += 1
                waiter.set_result(connection)
        if _has_room(connection):
            self._usable[connection] = None

    def _fail_waiting(self, failure: DialFailed, count: int | None = None) -> None:
        """Fail the exchanges that have waited longest for a connection that could not be made."""
        for _ in range(len(self._waiting) if count is None else min(count, len(self._waiting))):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(copy(failure))

    def _abandon(self, waiter: asyncio.Future[HttpConnection]) -> None:
        """Remove an exchange that waits no longer, and return a connection given to it at the same
        moment.
        """
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.give_back(waiter.result())

    # -------------------------------------------------------------------------------------- closing

    def _close_idle(self) -> None:
        before = self._loop.time() - IDLE_SECONDS
        for connection in tuple(self._all):
            if not connection.used and (connection.is_closed or connection.idle_since < before):
                self._drop(connection)
        self._sweep = (
            self._loop.call_later(IDLE_SECONDS / 3, self._close_idle) if self._all else None
        )

    def _drop(self, connection: HttpConnection) -> None:
        """Close a connection that takes no more exchanges, once the last on it is over."""
        if not connection.used:
            self._all.discard(connection)
            self._usable.pop(connection, None)
            connection.close()


def _has_room(connection: HttpConnection) -> bool:
    return connection.used < connection.capacity and not connection.is_closed


# --------------------------------------------------------------------------------------- the engine

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class _BodyClass(enum.Enum):
    """The kind of a request's body: requests of one class share connections.

    Nothing small waits behind a large body. Training data goes over HTTP/1.1: front ends let an
    HTTP/2 stream send 64 KB ahead, which limits it to 64 KB in each round trip.
    """

    SMALL = enum.auto()
    LARGE = enum.auto()
    DATA = enum.auto()

    @property
    def protocols(self) -> tuple[str, ...]:
        """Return the application protocols to offer, best first."""
        return ("http/1.1",) if self is _BodyClass.DATA else BOTH


class HttpEngine:
    """Connections to servers, opened on first use."""

    def __init__(
        self,
        proxies: Proxies | None = None,
        *,
        connections: Mapping[str, int] = MappingProxyType({}),
        proxy_headers: Mapping[str, str] = _NO_HEADERS,
        trust: Trust | None = None,
    ) -> None:
        self._proxies = None if proxies is None or proxies.is_empty else proxies
        self._proxy_headers = proxy_headers
        self._trust = trust or Trust()
        self._slots = open_slots(connections)
        self._pools: dict[tuple[str, str | None, _BodyClass], Pool] = {}
        self._closed = False

    async def send(self, request: PreparedRequest) -> RawResponse:
        try:
            pool, loop = self._pool(request), asyncio.get_running_loop()
            async with self._slots[request.purpose]:
                while True:
                    self._check_open()
                    connection = pool.take() or await pool.wait(request.connect_seconds)
                    exchange = Exchange(request, loop)
                    try:
                        # No variable of this frame may hold the query.
                        if connection.start(exchange, _split(request.url)[1]):
                            await exchange.receive()
                            break
                    finally:
                        exchange.leave()
                        connection.leave(exchange)
                        pool.give_back(connection)
                return await _read_response(exchange)
        except ValueError as error:  # a URL or a header that cannot be sent
            failure: Exception = ExchangeFailed(f"ValueError: {error}")
        except (ExchangeFailed, OSError) as error:  # of the way, or of the body
            failure = error.with_traceback(None)  # whose frames have the query, which may be secret
        self._check_open()
        raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client is closed")

    def _pool(self, request: PreparedRequest) -> Pool:
        origin, body_class = _split(request.url)[0], _class_of(request)
        proxy = None if self._proxies is None else self._proxies.of(request.url)
        key = (origin, proxy, body_class)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(
                Dialer(origin, proxy, self._proxy_headers, self._trust, body_class.protocols)
            )
        return pool

    async def aclose(self) -> None:
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    @property
    def connections(self) -> list[HttpConnection]:
        """Return the connections that are open."""
        return [connection for pool in self._pools.values() for connection in pool.connections]

    def describe(self) -> list[ConnectionFacts]:
        engine = f"httpunk {metadata.version('httpunk')}"
        facts = [
            describe_connection(engine, connection.version, connection.secured, proxy)
            for (_, proxy, _), pool in self._pools.items()
            for connection in pool.connections
        ]
        return list(dict.fromkeys(facts))


async def _read_response(exchange: Exchange) -> RawResponse:
    headers = exchange.headers
    assert headers is not None
    content, encoding = exchange.content, headers.get("content-encoding")
    if encoding is not None:
        content = await unpack(content, encoding, exchange.limit)
    return RawResponse(exchange.request, exchange.status, headers, content)


def _class_of(request: PreparedRequest) -> _BodyClass:
    if request.nbytes <= INLINE_NBYTES:
        return _BodyClass.SMALL
    return _BodyClass.DATA if request.purpose is Purpose.UPLOAD else _BodyClass.LARGE


@lru_cache(maxsize=512)
def _split(url: str) -> tuple[str, str]:
    """Return the origin of a URL, and the rest, which is sent as it is."""
    at = url.find("/", url.find("://") + 3)
    if at < 0:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}", f"/?{parts.query}" if parts.query else "/"
    return url[:at], url[at:].partition("#")[0]
