"""Open connections: to the server or through a proxy, with TLS where the address asks for it."""

from __future__ import annotations

import asyncio
import base64
import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import attrs
from httpunk import HeaderMap
from httpunk._httpunk import H1Codec, H1ResponseHead

from tinker._config.proxies import PORTS
from tinker._http import trust
from tinker._http.http1 import Http1Connection
from tinker._http.http2 import Http2Connection
from tinker._http.messages import CONNECT_SECONDS, ExchangeFailed
from tinker._http.phase import MAX_HEAD_NBYTES
from tinker._http.trust import Trust
from tinker._installation import install_command

Connection: TypeAlias = Http1Connection | Http2Connection

# Before the next of several addresses is tried beside the one that does not answer.
_NEXT_ADDRESS_SECONDS = 0.25
# A connection whose other side is gone ends after this long: bytes that nobody acknowledges, or probes that nobody answers.
_DEAD_SECONDS = 20
_PROBE_SECONDS, _PROBES = 5, 3


class DialFailed(Exception):
    """No connection could be made; ``is_wrong`` where the address, or what is trusted, is probably wrong."""

    def __init__(self, message: str, *, timed_out: bool = False, is_wrong: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.is_wrong = is_wrong

    def for_exchange(self) -> ExchangeFailed:
        """Return the failure of one of the exchanges that waited for the connection."""
        return ExchangeFailed(str(self), timed_out=self.timed_out, never_connected=True, wrong_address=self.is_wrong)


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
    _known: dict[str, str] = attrs.field(factory=dict, init=False)

    @cached_property
    def _address(self) -> SplitResult:
        return urlsplit(self.origin)

    @property
    def is_secure(self) -> bool:
        """Return whether connections to the server have TLS, which decides how many exchanges one can carry."""
        return self._address.scheme == "https"

    @cached_property
    def where(self) -> str:
        """Return the host and port that are connected to."""
        return _where(self._address if self.proxy is None else urlsplit(self.proxy))

    async def dial(self) -> Connection:
        """Open a connection, in at most ``CONNECT_SECONDS``. Raises DialFailed."""
        where = self.where
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                chooser = await self._connect()
        except TimeoutError:
            raise late(where, CONNECT_SECONDS) from None
        except ssl.SSLError as error:
            wrong = trust.is_without_tls(error) or isinstance(error, ssl.SSLCertVerificationError)
            raise DialFailed(trust.describe(error, _where(self._address)), is_wrong=wrong) from None
        except (OSError, ValueError) as error:
            message = f"could not connect to {where}: {_reason(error)}"
            raise DialFailed(message, is_wrong=_is_refused_here(error, where)) from None
        return chooser.connection

    async def _connect(self) -> _Chooser:
        address, chooser = self._address, _Chooser(self)
        if self.proxy is None:
            await self._open(chooser, _host(address), _port(address), self._context if self.is_secure else None)
            return chooser
        proxy = urlsplit(self.proxy)
        if proxy.scheme.startswith("socks"):
            sock = await _dial_socks(self.proxy, _host(address), _port(address))
            await self._open(chooser, _host(address), _port(address), self._context if self.is_secure else None, sock)
            return chooser
        outer = self._proxy_context if proxy.scheme == "https" else None
        if not self.is_secure:
            await self._open(chooser, _host(proxy), _port(proxy), outer)
            return chooser
        tunnel = _Tunnel()
        transport = await self._open(tunnel, _host(proxy), _port(proxy), outer)
        await tunnel.ask(transport, _where(address), {**_credential(proxy), **self.proxy_headers})
        loop = asyncio.get_running_loop()
        inner = await loop.start_tls(transport, chooser, self._context, server_hostname=_host(address))
        assert inner is not None
        chooser.connection_made(inner)
        return chooser

    async def _open(
        self,
        protocol: asyncio.Protocol,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        sock: socket.socket | None = None,
    ) -> asyncio.Transport:
        """Open a connection to a host, or on a socket. A host's address that answered is used until it does so no more."""
        loop = asyncio.get_running_loop()
        name = None if context is None else host
        known = self._known.get(host)
        if sock is not None:
            transport, _ = await loop.create_connection(lambda: protocol, sock=sock, ssl=context, server_hostname=name)
        elif known is not None:
            try:
                transport, _ = await loop.create_connection(lambda: protocol, known, port, ssl=context, server_hostname=name)
            except BaseException:
                self._known.pop(host, None)
                raise
        else:
            transport, _ = await loop.create_connection(
                lambda: protocol, host, port, ssl=context, server_hostname=name, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS
            )
        if sock is None:
            self._known[host] = transport.get_extra_info("peername")[0]
        _watch_for_silence(transport.get_extra_info("socket"))
        return transport

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return self.trust.context("h2", "http/1.1")

    @cached_property
    def _proxy_context(self) -> ssl.SSLContext:
        return self.trust.context("http/1.1")

    def make_connection(self, protocol: str | None) -> Connection:
        """Return the connection for an application protocol."""
        authority = self._address.netloc
        if protocol == "h2":
            return Http2Connection(authority)
        if self.proxy is None or self.is_secure or self.proxy.startswith("socks"):
            return Http1Connection(authority)
        return Http1Connection(authority, self.origin, {**_credential(urlsplit(self.proxy)), **self.proxy_headers})


class _Chooser(asyncio.Protocol):
    """The protocol of a new connection until it is known which one both sides speak."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self.connection = self._dialer.make_connection(None if secured is None else secured.selected_alpn_protocol())
        assert isinstance(transport, asyncio.Transport)
        transport.set_protocol(self.connection)
        self.connection.connection_made(transport)
        for data in self._early:
            self.connection.data_received(data)
        if transport.is_closing():  # before anybody knew which protocol it was
            self.connection.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)


class _Tunnel(asyncio.Protocol):
    """Asks a proxy for a connection to a server."""

    def __init__(self) -> None:
        self._codec = H1Codec(max_buf_size=MAX_HEAD_NBYTES)
        self._head: asyncio.Future[H1ResponseHead] = asyncio.get_running_loop().create_future()

    async def ask(self, transport: asyncio.Transport, where: str, headers: Mapping[str, str]) -> None:
        """Ask for the connection. Raises ConnectionError if the proxy refuses."""
        request = self._codec.serialize_request("CONNECT", where, HeaderMap({"Host": where, **headers}.items()))
        transport.write(request)
        try:
            head = await self._head
        except BaseException:
            transport.abort()
            raise
        if not 200 <= head.status < 300:
            transport.abort()
            raise ConnectionError(f"the proxy answered the request for {where} with {head.status}")

    def data_received(self, data: bytes) -> None:
        try:
            head = self._codec.receive_head(data)
        except Exception as error:  # noqa: BLE001 - whatever the proxy sent
            self._fail(ConnectionError(f"the proxy sent no valid HTTP/1.1: {error}"))
            return
        if head is not None and not self._head.done():
            self._head.set_result(head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionError("the proxy closed the connection"))

    def _fail(self, error: ConnectionError) -> None:
        if not self._head.done():
            self._head.set_exception(error)


async def _dial_socks(proxy: str, host: str, port: int) -> socket.socket:
    """Open a connection through a SOCKS proxy; the proxy looks up the host."""
    try:
        from python_socks.async_.asyncio import Proxy
    except ImportError:
        raise ValueError(f"a SOCKS proxy needs another package: {install_command('socks')}") from None
    from python_socks import ProxyError

    try:
        return await Proxy.from_url(proxy.replace("socks5h://", "socks5://"), rdns=True).connect(host, port)
    except ProxyError as error:
        raise ConnectionError(f"the proxy refused: {error}") from None


def _watch_for_silence(sock: socket.socket) -> None:
    """Let the system end a connection whose other side is gone."""
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
    host = _host(address)
    return f"[{host}]:{_port(address)}" if ":" in host else f"{host}:{_port(address)}"


def _credential(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    text = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def _reason(error: Exception) -> str:
    """Describe a failure in the system's words; a host name that does not exist has words of its own."""
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError) or not error.errno:
        return str(error.strerror or error) if isinstance(error, OSError) else str(error)
    return os.strerror(error.errno)


def _is_refused_here(error: Exception, where: str) -> bool:
    """Return whether no program of this machine listens at the address."""
    refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
    return refused and is_loopback(where.rpartition(":")[0].strip("[]"))


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
