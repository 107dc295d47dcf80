"""The connections of a server: how many there may be, and how long a client may take to send a
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:  # of h11's protocol, only what is called alike is used, but for LimitedH11
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as AnyProtocol
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
else:
    AnyProtocol = asyncio.Protocol

log: logging.Logger = logging.getLogger("tinker.local")
# of a head that is not complete, as in h11; also of what follows the last part of a body
HEAD_NBYTES = 1 << 14
BODY_NBYTES_PER_SECOND = 500  # a body that comes more slowly than this is given up
MAX_BACKLOG = 1024  # connections that the system has accepted and this process has not
FILES = 64  # descriptors for everything that is no connection: checkpoints, the journal, libraries
ENOUGH_DESCRIPTORS = 1 << 16
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
TLS_HANDSHAKE = b"\x16\x03"  # how it begins
# for what a connection with TLS has still to send when it is closed, and for the client's own close
TLS_CLOSE_SECONDS = 300.0
REPORT_SECONDS = 60.0  # between two lines in the log about descriptors
_Stage: TypeAlias = Literal["head", "body"] | None


def raise_descriptor_limit() -> None:
    """Raise this process's limit of file descriptors to the system's maximum, or to
    ENOUGH_DESCRIPTORS.
    """
    # Windows; a system with a limit of another kind
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = (
            ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
        )
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def count_descriptors() -> int:
    """Return how many file descriptors this process may have."""
    with contextlib.suppress(ImportError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return ENOUGH_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return ENOUGH_DESCRIPTORS


def count_backlog() -> int:
    """Return the listen backlog; each connection in it needs a descriptor once it is accepted."""
    return min(MAX_BACKLOG, count_descriptors() // 8)


def _limit_count(wanted: int | None) -> int:
    return max(16, count_descriptors() - count_backlog() - FILES) if wanted is None else wanted


@attrs.define(eq=False)
class Connections:
    """The limits of one server's connections, and those of them that have no request in work, the
    idlest first.

    Without a number of connections there may be as many as there are descriptors for.
    """

    head_seconds: float
    body_seconds: float
    max_connections: int = attrs.field(converter=_limit_count)
    tls: ssl.SSLContext | None = None
    waiting: dict[LimitedProtocol, None] = attrs.field(
        factory=lambda: dict[LimitedProtocol, None]()
    )
    count: int = 0
    _reported_at: float | None = None

    def protocol(self) -> type[LimitedProtocol]:
        """Return the class of these connections: with the parser httptools where it is installed,
        else with h11.
        """
        try:
            from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
        except ImportError:
            return type("Limited", (LimitedH11, H11Protocol), {"limits": self})
        return type("Limited", (LimitedProtocol, HttpToolsProtocol), {"limits": self})

    def make_room(self) -> None:
        """Close connections without a request, the idlest first, until there are as many as there
        may be.
        """
        while self.count > self.max_connections and self.waiting:
            next(iter(self.waiting)).drop()

    def report(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Handle an error reported by the loop; running out of descriptors is logged at most once a
        minute.
        """
        if not str(context.get("message")).startswith("socket.accept()"):
            loop.default_exception_handler(context)
        elif self._reported_at is None or loop.time() - self._reported_at > REPORT_SECONDS:
            self._reported_at = loop.time()
            log.error(
                "no file descriptor is left for another connection (%d of them)",
                count_descriptors(),
            )


def _hide_upgrade(data: bytes) -> bytes:
    """Rename the header Upgrade, such as Java's client sends: httptools drops the body of a request
    that has one.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(b"\r\nX-Upgrade:", head) + end + rest


class LimitedProtocol(AnyProtocol):
    """A connection that is closed when its client takes too long to send a request, or when others
    need its place.

    It is a mixin of uvicorn's protocols, written for that of httptools, which has no limit of a
    head. With TLS it begins without it, so that a client counts, and its time runs, from before the
    handshake.
    """

    limits: Connections
    headers: list[tuple[bytes, bytes]]
    _is_h11 = False
    _unread = 0  # bytes since the last part of a request that was complete
    _has_body = False  # which is not complete
    _stage: _Stage = None
    _of: object = None  # the request whose body is received
    _timer: asyncio.TimerHandle | None = None
    _ends = 0.0
    _nbytes = 0
    _is_counted = False
    _socket: asyncio.Transport | None = None  # the connection below TLS
    _handshake: asyncio.Task[None] | None = None
    _early = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.limits.count += 1
        self._is_counted = True
        self.limits.make_room()
        if self.limits.count > self.limits.max_connections:
            self.drop()
        else:
            self._watch()
            if self.limits.tls is not None:
                self._socket = transport
                self._handshake = self.loop.create_task(
                    self._shake_hands(transport, self.limits.tls)
                )

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Upgrade to TLS, or end the connection if the handshake fails."""
        try:
            encrypted = await self.loop.start_tls(
                transport, self, tls, server_side=True, ssl_shutdown_timeout=TLS_CLOSE_SECONDS
            )
        except OSError as error:
            log.info("a connection ended in the TLS handshake: %s", error)
            encrypted = None
        self._handshake = None
        if encrypted is None:
            self.connection_lost(None)
            return
        super().connection_made(encrypted)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        # a request that came together with the end of the handshake
        if self._handshake is not None:
            self._early += data
            return
        if self.limits.tls is None and self._request is None and data.startswith(TLS_HANDSHAKE):
            log.warning(
                "a client sent HTTPS, and this server speaks HTTP: its URL begins with http://"
            )
            self.send_400_response("This server speaks HTTP.")
            return
        if not self._is_h11:
            self._unread += len(data)
            data = data if self._has_body else _hide_upgrade(data)
        super().data_received(data)
        if self._unread > HEAD_NBYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")
            self._close_socket()
        self._watch()
        self._nbytes += len(data)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.headers = []  # for those behind a body, which are ignored
        self._unread, self._has_body = 0, True

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._unread = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._unread, self._has_body = 0, False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def drop(self) -> None:
        """Close the connection and free its place."""
        self._forget()
        self.transport.close()
        if self._handshake is not None:
            self._handshake.cancel()
            self.connection_lost(None)  # which the loop reports of TLS alone
        self._close_socket()

    def shutdown(self) -> None:
        super().shutdown()
        self._close_socket()

    def _close_socket(self) -> None:
        """Close the socket below TLS once everything is sent: idle clients do not answer TLS's
        close message.
        """
        if (
            self._socket is not None
            and self.transport.is_closing()
            and not self._socket.get_write_buffer_size()
        ):
            self._socket.close()

    def _forget(self) -> None:
        self.limits.waiting.pop(self, None)
        self.limits.count -= self._is_counted
        self._is_counted = False
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Start the timer of the current stage, and record whether a request is in progress."""
        if not self._is_counted:
            return
        self.limits.waiting.pop(self, None)
        request = self._request
        if request is None or request.response_complete:
            self.limits.waiting[self] = None
        stage = self._find_stage()
        if (stage, request) == (self._stage, self._of):
            return
        self._stage, self._of, self._nbytes = stage, request, 0
        if self._timer is not None:
            self._timer.cancel()
        if stage is not None:
            self._start()

    @property
    def _request(self) -> RequestResponseCycle | None:
        """Return the last request; None before the first one."""
        return self.cycle

    def _find_stage(self) -> _Stage:
        if self._has_body:
            return "body"
        request = self._request
        return "head" if request is None or (request.response_complete and self._unread) else None

    def _start(self) -> None:
        seconds = self.limits.head_seconds if self._stage == "head" else self.limits.body_seconds
        self._ends = self.loop.time() + seconds
        self._timer = self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """Close the connection, unless this server is the slow side, or the body arrives fast
        enough.
        """
        earned = self._nbytes / BODY_NBYTES_PER_SECOND if self._stage == "body" else 0.0
        if self._stage == "body" and self.flow.read_paused:
            self._start()
        elif self._ends + earned > self.loop.time():
            self._timer = self.loop.call_at(self._ends + earned, self._check)
        else:
            self.drop()


class LimitedH11(LimitedProtocol):
    """The same with h11, which limits heads."""

    conn: h11.Connection
    _is_h11 = True

    def _find_stage(self) -> _Stage:
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        has_begun = self._request is None or bool(self.conn.trailing_data[0])
        return "head" if self.conn.their_state is h11.IDLE and has_begun else None
