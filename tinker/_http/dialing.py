"""Open connections: to the server or through a proxy, with TLS where the address asks for it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import os
import re
import socket
import ssl
from collections.abc import Generator, Mapping
from functools import cached_property
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import attrs
from httpunk import HeaderMap
from httpunk._httpunk import H1Codec, H1ResponseHead

from tinker._config import PORTS, Trust, is_loopback
from tinker._http import trust
from tinker._http.http1 import Http1Connection
from tinker._http.http2 import Http2Connection
from tinker._http.messages import CONNECT_SECONDS, MAX_HEAD_NBYTES, ExchangeFailed
from tinker._http.statuses import (
    PROXY_HINT,
    PROXY_UNAUTHENTICATED_STATUS,
    is_retryable_status,
    is_success,
)
from tinker._installation import install_command

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
        status = await tunnel.ask(transport, where, {**_credential(proxy), **self.proxy_headers})
        if not is_success(status):
            raise _refusal(
                f"the proxy {self.where} answered the request for {where} with {status}", status
            )
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
            if trust.lacks_protocol(error) and self.protocols != BOTH:
                raise _NoCommonProtocolError from None
            message = trust.describe(error, _where(address), setting)
            raise DialFailed(
                message, is_wrong=trust.is_lasting(error), says_what_to_do=True
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


class _Tunnel(asyncio.Protocol):
    """Asks a proxy for a connection to a server."""

    def __init__(self) -> None:
        self._codec = H1Codec(max_buf_size=MAX_HEAD_NBYTES)
        self._head: asyncio.Future[H1ResponseHead] = asyncio.get_running_loop().create_future()

    async def ask(
        self, transport: asyncio.Transport, where: str, headers: Mapping[str, str]
    ) -> int:
        """Ask for the connection, and return the status of the response. Raises ConnectionError
        without a response.
        """
        request = self._codec.serialize_request(
            "CONNECT", where, HeaderMap({"Host": where, **headers}.items())
        )
        transport.write(request)
        try:
            head = await self._head
        except BaseException:
            transport.abort()
            raise
        if not is_success(head.status):
            transport.abort()
        return head.status

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


async def _dial_socks(proxy: SplitResult, host: str, port: int) -> socket.socket:
    """Open a connection through a SOCKS proxy, which looks up the host. Raises DialFailed if it
    refuses.
    """
    try:
        from python_socks import ProxyError, ProxyType
        from python_socks.async_.asyncio import Proxy
    except ImportError:
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
