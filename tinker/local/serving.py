"""A server on a port: its connections, its certificate, and whom it answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import ipaddress
import re
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

import attrs
import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tinker._basics.config import is_loopback
from tinker.local import engines
from tinker.local.app import create_app
from tinker.local.call import APIProblem, error_response, log
from tinker.local.engines import EngineName, Placement, open_engine
from tinker.local.engines.protocol import Engine
from tinker.local.scheduling import ModelNotLoaded, OpenEngine
from tinker.local.settings import VLLM, Settings
from tinker.local.state import State
from tinker.local.storage import make_data_folder
from tinker.local.storage.futures import RUNS

if TYPE_CHECKING:  # of h11's protocol, only what is called alike is used, but for LimitedH11
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as AnyProtocol
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
else:
    AnyProtocol = asyncio.Protocol

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
        while self.limits.count > self.limits.max_connections and self.limits.waiting:
            next(iter(self.limits.waiting)).drop()
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


def is_address(name: str) -> bool:
    """Return whether it is an IP address, which DNS rebinding cannot fake."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not listened on


class Guard:
    """The application, for requests that name one of ``hosts``, this machine itself, or an address
    instead of a name.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = (
            self._fault(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        )
        if fault is None:
            await self._app(scope, receive, send)
            return
        await error_response(APIProblem(403, fault))(scope, receive, send)

    def _fault(self, method: str, headers: Headers) -> str | None:
        host, origin = headers.get("host"), headers.get("origin")
        if (
            origin is None
            and method not in ("GET", "HEAD")
            and headers.get("sec-fetch-site") == "cross-site"
        ):
            # a link that leads here is followed with GET, which changes nothing
            origin = "another site"
        if (
            host is not None
            and not self._is_ours(name := hostname(f"//{host}"))
            and not is_address(name)
        ):
            return (
                f"{name!r} is not a name of this server; start it with "
                f"--allow-host {name}, or with a key"
            )
        if (
            origin is not None
            and _split(origin).netloc != host
            and not self._is_ours(hostname(origin))
        ):
            return (
                f"this server takes no requests from web pages of {origin!r}; start it with "
                "--allow-host, or with a key"
            )
        return None

    def _is_ours(self, name: str) -> bool:
        return name in self._hosts or is_loopback(name)


def guard_app(app: ASGIApp, settings: Settings, host: str) -> ASGIApp:
    """Return the application as it is served on ``host``: behind a guard unless
    clients need a key.
    """
    if settings.api_key is not None:
        return app
    names = {socket.gethostname() if host in EVERY_ADDRESS else host, *settings.allowed_hosts}
    if settings.public_url is not None:
        names.add(hostname(settings.public_url))
    return Guard(app, names)


def hostname(url: str) -> str:
    """Return the name or address in a URL, in lower case; empty without one."""
    return (_split(url).hostname or "").rstrip(".")


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; empty ones where it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


CERTIFICATE_MARK = "-----BEGIN CERTIFICATE-----"
KEY_MARK = "PRIVATE KEY-----"


def load_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a server: HTTP/1.1 over TLS 1.2 or 1.3, with these files in PEM
    format.

    ``certificate`` holds the server's own certificate first, then those that lead to its issuer.
    Raises ValueError, which names the file in one sentence: it cannot be read or holds something
    else, the key has a passphrase or is another certificate's.
    """
    for file, what, mark in (
        (certificate, "certificate", CERTIFICATE_MARK),
        (key, "private key", KEY_MARK),
    ):
        try:
            # what stands around the blocks may be of any encoding
            text = file.read_text(encoding="latin-1")
        except OSError as error:
            raise ValueError(
                f"the {what} in {str(file)!r} cannot be read: {error.strerror}"
            ) from error
        if mark not in text:
            raise ValueError(f"{str(file)!r} holds no {what} in PEM format")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # with which a client could make the server compute as often as it likes
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, functools.partial(_refuse_passphrase, key))
    except ssl.SSLError as error:
        raise ValueError(_describe(error, certificate, key)) from error
    return context


def _refuse_passphrase(key: Path) -> str:
    """Answer OpenSSL, which would ask for the passphrase on the terminal."""
    raise ValueError(
        f"the private key in {str(key)!r} has a passphrase; write it without one: "
        "openssl pkey -in FILE -out FILE"
    )


def _describe(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return (
            f"the private key in {str(key)!r} is not that of the first certificate in "
            f"{str(certificate)!r}"
        )
    reason = (error.reason or "damaged").replace("_", " ").lower()
    return (
        f"the certificate in {str(certificate)!r} and the private key in "
        f"{str(key)!r} cannot be used: {reason}"
    )


#: What users may mean by a name that is no model's.
MEANT = {
    engines.TOY_MODEL: engines.TOY_MODEL,
    "toy": engines.TOY_MODEL,
    engines.PACKAGED_MODEL: engines.PACKAGED_MODEL,
}
FORCE_EXIT_SECONDS = 0.2  # between two looks whether a second Ctrl-C has come
# longer than clients pause between requests; a shorter one cuts connections under them
KEEP_ALIVE_SECONDS = 75


class _Server(uvicorn.Server):
    """uvicorn that releases the waiters for results before it waits for their connections to end.

    The request that runs is finished first, and answered like any other; a second Ctrl-C does
    without it.
    """

    def __init__(
        self, state: State, host: str = "127.0.0.1", ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._state = state
        settings = state.settings
        self._limits = Connections(
            settings.head_seconds, settings.body_seconds, settings.max_connections, ssl_context
        )
        config = uvicorn.Config(
            guard_app(create_app(state), settings, host),
            http=self._limits.protocol(),
            backlog=count_backlog(),
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)
        self.came_up = threading.Event()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner(
            loop_factory=_choose_loop(has_tls=self._limits.tls is not None)
        ) as runner:
            runner.run(self.serve(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._limits.report)
        await super().startup(sockets)
        self.came_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.begin_close()
        while not self.force_exit and not await self._state.wait_for_step(FORCE_EXIT_SECONDS):
            pass
        await super().shutdown(sockets)


def _choose_loop(*, has_tls: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the loop; uvicorn's choice is the whole process's in its versions below
    0.36.
    """
    if not has_tls:  # uvloop may read before the handshake does
        with contextlib.suppress(ImportError):
            fast: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(
                "uvloop"
            ).new_event_loop
            return fast
    if sys.platform == "win32":
        return asyncio.ProactorEventLoop
    return asyncio.SelectorEventLoop


def announce(
    url: str, loaded: Sequence[Engine], *, has_key: bool = False, restored: str = ""
) -> None:
    """Print the models, the URLs, whether clients need a key, how to start, and what an earlier
    server left.
    """
    # from this machine, where the server listens on every address
    here = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    text = describe_start(here, *(engine.base_model for engine in loaded), has_key=has_key)
    if url.startswith("https:"):
        text += f"\n\nClients use a name of the certificate in place of {hostname(here)}."
    elif here != url:
        text += (
            f"\n\nOther machines use this host's name, {socket.gethostname()}, in place of "
            f"{hostname(here)}."
        )
    if restored:
        text += f"\n\nRestored {restored}."
    sys.stdout.write(f"{text}\n")  # at once, for who reads the first line
    sys.stdout.flush()


def describe_start(url: str, base_model: str, *others: str, has_key: bool) -> str:
    """Return the startup message of a server of one or several base models. It does not contain the
    key.

    >>> print(describe_start("http://127.0.0.1:8000", "tinker/toy", has_key=False))
    Serving tinker/toy at http://127.0.0.1:8000 (TINKER_BASE_URL=http://127.0.0.1:8000)
    Key:  any, or none
    Page: http://127.0.0.1:8000/    API: http://127.0.0.1:8000/docs
    Stop: Ctrl-C
    <BLANKLINE>
        import tinker
        service = tinker.ServiceClient(base_url="http://127.0.0.1:8000")
        training = service.create_lora_training_client(base_model="tinker/toy", rank=8)
    """
    key = "the one this server was started with (TINKER_API_KEY)" if has_key else "any, or none"
    return f"""Serving {", ".join((base_model, *others))} at {url} (TINKER_BASE_URL={url})
Key:  {key}
Page: {url}/    API: {url}/docs
Stop: Ctrl-C

    import tinker
    service = tinker.ServiceClient(base_url="{url}")
    training = service.create_lora_training_client(base_model="{base_model}", rank=8)"""


def serve(
    *,
    model: str | Sequence[str] | None = None,
    engine: EngineName | Sequence[EngineName] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    settings: Settings | None = None,
    ssl_context: ssl.SSLContext | None = None,
    started: Callable[[str, Sequence[Engine]], None] | None = None,
) -> None:
    """Load the engine, then serve until interrupted (Ctrl-C, SIGTERM): the running request is
    finished, waiting ones fail.

    Several names of a ``model`` make a server of several base models, the first of which is the
    default; ``engine`` is then that of all of them, or has one name for each. ``port`` 0 picks a
    free one. ``started`` is called with the base URL and the engines once connections are accepted;
    by default it prints where things are and how to begin. ``ssl_context`` is one of
    ``ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)`` with the certificate of the server; None
    serves plain HTTP. A server that others can reach says in the log that it has no key, or that it
    has one and no TLS to protect it. Raises OSError when the port is taken or the data folder
    cannot be written, also at the end; ImportError when the engine is not installed; ValueError for
    models of one name and for a device that this machine does not have.
    """
    raise_descriptor_limit()
    check_port(host, port)
    settings = settings or Settings()
    make_data_folder(settings.data_dir)
    loaded = [open_one() for open_one in _engine_openers(engine, model, settings.placement)]
    engines.check_distinct(loaded)
    state = _make_state(_engine_openers(loaded, None, settings.placement), settings)
    if state.owner.has_company():
        log.warning(
            "another server uses %s too: each has its own runs, and both have all checkpoints",
            settings.data_dir,
        )
    _open_samplers(state)
    try:
        listener = _listen(host, port)
    except OSError:  # another program has taken it in the meantime
        state.close()
        raise
    try:
        url, has_key = _url(listener, ssl_context), settings.api_key is not None
        if not is_loopback(host):
            _warn_of_others(url, has_key=has_key, has_tls=ssl_context is not None)
        report = started or functools.partial(
            announce, has_key=has_key, restored=_describe_restored(state)
        )
        server = _Server(state, host, ssl_context)
        # A signal counts from the first line on, and uvicorn raises it again when it has shut down.
        with (
            _terminate_like_interrupt(),
            contextlib.suppress(KeyboardInterrupt),
            server.capture_signals(),
        ):
            report(url, loaded)
            server.run(sockets=[listener])
        if (error := state.close_error) is not None:
            reason = error.strerror or type(error).__name__
            raise OSError(
                "the server has ended, and nothing can be written "
                f"to {settings.data_dir} now: {reason}"
            ) from error
    finally:
        listener.close()


def _describe_restored(state: State) -> str:
    """Return how many runs and checkpoints the data folder has, and its name; empty
    if it has none.
    """
    counts = {"run": len(state.journal.read(RUNS)), "checkpoint": len(state.checkpoints.list())}
    found = [f"{count} {what}{'s' * (count > 1)}" for what, count in counts.items() if count]
    return f"{' and '.join(found)} from {state.settings.data_dir}" if found else ""


def _make_state(openers: Sequence[OpenEngine], settings: Settings) -> State:
    """Make the state of a server. Raises ValueError for several models and one list of samplers."""
    if not settings.sampler:
        return State(openers, settings)
    from tinker.local.engines.vllm import open_vllm

    urls = () if settings.sampler == (VLLM,) else settings.sampler
    if urls and len(openers) > 1:
        raise ValueError(
            f"samplers at URLs serve one base model; for {len(openers)} models "
            f"use the sampler {VLLM!r}"
        )
    # a sampler asks for the name of the engine that is open
    cached = [functools.cache(one) for one in openers]
    arguments = urls, settings.sampler_args, settings.placement, settings.data_dir
    return State(
        cached,
        settings,
        samplers=[functools.partial(open_vllm, one, *arguments) for one in cached],
    )


def _open_samplers(state: State) -> None:
    """Wait for samplers that are elsewhere, before anyone can use them. Raises OSError for one that
    does not start.
    """
    try:
        for served in state.served.models:
            served.open_sampler()
    except ModelNotLoaded as error:
        state.close()
        raise OSError(str(error)) from error


def _warn_of_others(url: str, *, has_key: bool, has_tls: bool) -> None:
    """Warn that anyone who can reach the server can use it, or can read the key of those who do."""
    if not has_key:
        log.warning("this server has no key: anyone who can reach %s can use it", url)
    elif not has_tls:
        log.warning(
            "clients send their key to %s unencrypted: give --tls-cert and --tls-key, or put a "
            "proxy with TLS in front",
            url,
        )


@contextmanager
def _terminate_like_interrupt() -> Generator[None]:
    """Handle SIGTERM like Ctrl-C: uvicorn raises both again after its shutdown, and only SIGINT
    raises an exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def running_server(
    settings: Settings | None = None,
    engine: Engine | EngineName | Sequence[Engine | EngineName] = "toy",
    *,
    model: str | Sequence[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Generator[str]:
    """Run a server on a free port of this machine, in a thread; yields its base URL.

    Several models and ``ssl_context`` are given as to :func:`serve`. The end of the block fails
    what is pending and ends the server's threads.
    """
    chosen = settings or Settings()
    with serve_in_thread(
        _make_state(_engine_openers(engine, model, chosen.placement), chosen), ssl_context
    ) as url:
        yield url


@contextmanager
def serve_in_thread(state: State, ssl_context: ssl.SSLContext | None = None) -> Generator[str]:
    """Run :func:`running_server` for a state that the caller made and may look into."""
    listener = _listen("127.0.0.1", 0)
    server = _Server(state, ssl_context=ssl_context)

    def run() -> None:
        try:
            server.run(sockets=[listener])
        finally:
            server.came_up.set()

    thread = threading.Thread(target=run, name="tinker-server", daemon=True)
    thread.start()
    server.came_up.wait()
    try:
        if not server.started:
            raise RuntimeError("the server did not start; its log says why")
        yield _url(listener, ssl_context)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _engine_openers(
    engine: Engine | EngineName | Sequence[Engine | EngineName] | None,
    model: str | Sequence[str] | None,
    placement: Placement,
) -> list[OpenEngine]:
    """Return the opener of each engine; the placement is for torch engines.

    Raises ValueError where there are more engines than models, or too few.
    """
    names: list[str | None] = (
        [model] if model is None or isinstance(model, str) else [*model] or [None]
    )
    given: list[Engine | EngineName | None] = (
        [engine] if isinstance(engine, str) or not isinstance(engine, Sequence) else [*engine]
    )
    if model is None and len(given) > 1:
        names = [None] * len(given)
    if len(given) == 1:
        given *= len(names)
    if len(given) != len(names):
        raise ValueError(
            f"{len(names)} models and {len(given)} engines: name one engine for all, "
            "or one for each model"
        )
    pairs = list(zip(given, names, strict=True))
    # the placement is not for toy engines next to it
    has_torch = any(_is_torch(*pair) for pair in pairs)
    places = [
        placement if _is_torch(*pair) or not has_torch else engines.DEFAULT_PLACEMENT
        for pair in pairs
    ]
    return [
        functools.partial(_open_engine, *pair, place)
        for pair, place in zip(pairs, places, strict=True)
    ]


def _is_torch(engine: Engine | EngineName | None, model: str | None) -> bool:
    return (engine is None or isinstance(engine, str)) and engines.choose_engine(
        engine, model
    ) == "torch"


def _open_engine(
    engine: Engine | EngineName | None, model: str | None, placement: Placement
) -> Engine:
    """Open an engine, which may be one already."""
    if engine is not None and not isinstance(engine, str):
        return engine
    engines.check_source(engine, model, MEANT)
    with engines.explain_absence_offline(model):
        return open_engine(engine, model, placement)


def check_port(host: str, port: int) -> None:
    """Raise OSError for a port that is taken. While a model is loaded, nothing listens there."""
    _listen(host, port).close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    # inherited; else each answer waits 40 ms for an ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _url(listener: socket.socket, ssl_context: ssl.SSLContext | None) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if ssl_context else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
