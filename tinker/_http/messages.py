"""The messages of an exchange, its failures, and bodies that were packed on the way."""

from __future__ import annotations

import asyncio
import enum
import re
import ssl
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import attrs
import msgspec

from tinker._basics.config import explain_missing_certificates, show_url
from tinker._basics.shown import clean
from tinker._http.auth import Credential
from tinker._http.retry import is_success
from tinker._wire import Piece

if TYPE_CHECKING:
    from httpunk import HeaderMap

CONNECT_SECONDS = 10.0
# An idle connection is closed after this time, before the server does so at a bad moment.
IDLE_SECONDS = 15.0
# for the body of a response whose head has come, so that one that trickles in ends as well
ANSWER_SECONDS = 600.0
MAX_ANSWER_NBYTES = 16 << 20
# of the successes of these, whose responses hold the arrays of losses and samples
MAX_RESULT_NBYTES = 2 << 30
RESULT_OPERATIONS = frozenset({"retrieve_future"})
MAX_HEAD_NBYTES = 1 << 16
SPARE_NBYTES = 64 << 20  # of memory that must be free while a large body is read; never touched
_LONGEST_REASON = 500  # characters of a failure's text, which may be the server's


#: Takes the body of a success as it comes, with the headers, and must not raise; may leave before
#: the end.
Receive: TypeAlias = Callable[[Mapping[str, str], AsyncIterator[bytes]], Awaitable[None]]


class Purpose(enum.Enum):
    """The purpose of a connection: (the name of its pool in the settings, seconds of silence before
    it counts as dead).

    What starts a session warms the connections for what follows.
    """

    UPLOAD = ("upload", 120.0)
    SAMPLE = ("sample", 60.0)
    POLL = ("poll", 45.0)  # servers hold a poll for up to 40 s
    SESSION = ("session", 60.0)
    # tried for a minute: a connection that has died must leave time for others
    START = ("session", 20.0)
    HEARTBEAT = ("heartbeat", 10.0)
    STREAM = ("stream", 60.0)  # servers send a sign of life at least every 10 s

    @property
    def pool_name(self) -> str:
        """Return the name under which the settings say how many connections there may be."""
        return self.value[0]

    @property
    def read_seconds(self) -> float:
        """Return the longest silence of the server, in seconds."""
        return self.value[1]


class SharedHeaders(dict[str, str]):
    """Headers that many requests have, of one credential; made once and never changed.

    ``encoded`` is how they are sent, once an engine has made that.
    """

    __slots__ = ("credential", "encoded")

    def __init__(self, headers: Mapping[str, str], credential: Credential | None = None) -> None:
        super().__init__(headers)
        self.credential: Credential | None = credential
        self.encoded: HeaderMap | None = None

    def __repr__(self) -> str:
        """Return the names; values may be secret."""
        return f"SharedHeaders({', '.join(self)})"


@attrs.define(eq=False, repr=False)
class Headers(Mapping[str, str]):
    """All headers of one request: the ``shared`` ones and its ``own``, of which no
    name is in both.
    """

    shared: SharedHeaders
    own: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.own[name] if name in self.own else self.shared[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.shared
        yield from self.own

    def __len__(self) -> int:
        return len(self.shared) + len(self.own)

    def __repr__(self) -> str:
        """Return the names; values may be secret."""
        return f"Headers({', '.join(self)})"


class PreparedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An encoded request. ``body`` is a list of pieces, which may be sent one by one; ``record`` is
    their source, for JSON.

    ``headers`` are ``Headers`` where the transport made them; they may contain secrets.
    ``secret_headers`` names the user's secret headers in lower case. ``url`` may contain secrets
    too. ``redacted_url`` does not; without it, ``url`` contains none. ``nbytes`` is the length of
    the body. A ``confined`` body contains a secret and is not sent to another server by a redirect.
    ``silence_seconds`` is how long the server may stay silent. With ``receive``, a success is
    handed over piece by piece and its content is empty.
    """

    method: str
    operation: str = ""
    url: str
    headers: Mapping[str, str]
    redacted_url: str | None = None
    secret_headers: frozenset[str] = frozenset()
    body: Sequence[Piece] = ()
    nbytes: int = 0
    record: msgspec.Struct | None = None
    purpose: Purpose = Purpose.SESSION
    follows_redirects: bool = True
    confined: bool = False
    has_own_credential: bool = False
    receive: Receive | None = None
    silence_seconds: float = Purpose.SESSION.read_seconds

    @property
    def shown_url(self) -> str:
        """Return the address without secrets."""
        return self.redacted_url or self.url

    def __repr__(self) -> str:
        """Describe the request without secrets."""
        return (
            f"PreparedRequest({self.method} {self.shown_url}, "
            f"{self.operation or 'no operation'}, {self.purpose.name})"
        )

    def plan_body(self, status: int) -> tuple[Receive | None, int]:
        """Return who takes the body of a response with this status as it comes, None when it is
        read completely; and how many bytes it may have, packed or unpacked.
        """
        if not is_success(status):
            return None, MAX_ANSWER_NBYTES
        is_result = self.operation in RESULT_OPERATIONS
        return self.receive, MAX_RESULT_NBYTES if is_result else MAX_ANSWER_NBYTES

    @property
    def connect_seconds(self) -> float:
        """Return how long connecting may take."""
        return min(CONNECT_SECONDS, self.silence_seconds)


class RawResponse(msgspec.Struct, frozen=True):
    """The complete response to ``request``. Header names are case-insensitive."""

    request: PreparedRequest
    status: int
    headers: Mapping[str, str]
    content: bytes

    def __repr__(self) -> str:
        """Describe the response briefly, without secrets."""
        return f"RawResponse({self.status} to {self.request!r}, {len(self.content)} bytes)"

    @property
    def media_type(self) -> str:
        """Return the media type without parameters, lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class ExchangeFailed(Exception):
    """No complete response arrived. ``timed_out``: not in time. ``never_connected``: there was no
    connection to send it on.

    ``never_ran``: the server cannot have begun with the request, for want of a connection or
    because it said so. ``wrong_address``: no server of this address and scheme seems to exist.
    ``says_what_to_do``: the message has the advice. ``too_large``: the response is beyond its
    limit, or beyond the memory that is left.
    """

    def __init__(
        self,
        message: str,
        *,
        timed_out: bool = False,
        never_connected: bool = False,
        never_ran: bool = False,
        wrong_address: bool = False,
        says_what_to_do: bool = False,
        too_large: bool = False,
    ) -> None:
        super().__init__(clean(message)[:_LONGEST_REASON])
        self.timed_out = timed_out
        self.never_connected = never_connected
        self.never_ran = never_ran or never_connected
        self.wrong_address = wrong_address
        self.says_what_to_do = says_what_to_do
        self.too_large = too_large


def late(request: PreparedRequest, has_begun: bool, *, is_trickling: bool) -> ExchangeFailed:
    """Describe a response that did not come in time, or did not end."""
    if not has_begun:
        message = f"no response within {request.silence_seconds:g} s"
    elif is_trickling:
        message = f"the response started but was not complete after {ANSWER_SECONDS:g} s"
    else:
        message = (
            f"the response started, then nothing more arrived for {request.silence_seconds:g} s"
        )
    return ExchangeFailed(message, timed_out=True)


def check_size(nbytes: int, most: int, announced: str = "") -> None:
    """Raise ExchangeFailed for a body that has so many bytes already, if it is too large or memory
    for it is missing.

    ``announced`` is its Content-Length. What is larger than ``most`` is too large.

    Memory is reserved and given back at once: the native code of httpunk ends the process where it
    gets none, so it is given a piece only while there is more than it can need.
    """
    nbytes = max(nbytes, int(announced) if announced.isdecimal() and len(announced) < 20 else 0)
    if nbytes > most:
        raise ExchangeFailed(
            f"the response is larger than {most:,} bytes: it has at least {nbytes:,}",
            too_large=True,
        )
    try:
        bytes(nbytes + SPARE_NBYTES)
    except MemoryError:
        raise out_of_memory(nbytes) from None


def out_of_memory(nbytes: int = 0) -> ExchangeFailed:
    """Describe a response for which there is not enough memory; ``nbytes`` have come, if it is
    known how many.
    """
    size = f": it has at least {nbytes:,} bytes" if nbytes else ""
    return ExchangeFailed(
        f"the response does not fit into the memory that is left{size}", too_large=True
    )


class ConnectionFacts(msgspec.Struct, frozen=True):
    """How a client is connected with its server, without secrets. ``engine`` sends the requests;
    None is unknown or absent.
    """

    engine: str
    http_version: str | None = None
    tls_version: str | None = None
    certificate_issuer: str | None = None
    proxy: str | None = None

    def __str__(self) -> str:
        """Describe the connection in one line."""
        issuer = self.certificate_issuer and f"certificate issued by {self.certificate_issuer}"
        proxy = self.proxy and f"through the proxy {self.proxy}"
        facts = [fact for fact in (self.http_version, self.tls_version, issuer, proxy) if fact]
        return f"{', '.join(facts)} (by {self.engine})" if facts else self.engine


class HTTPEngine(Protocol):
    """Sends one request and returns one response.

    Raises ExchangeFailed if no response arrives, and ClientClosedError after it was closed. A
    redirect is a response.
    """

    async def send(self, request: PreparedRequest) -> RawResponse:
        """Make the exchange."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...

    def describe(self) -> Sequence[ConnectionFacts]:
        """Describe the kinds of connections that are open; call it on the loop."""
        ...


#: What OpenSSL calls the answer of a server that does not use TLS.
_PLAIN_TEXT_REASONS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_EXPIRED, _NOT_YET_VALID, _OTHER_NAME = 10, 9, (62, 64)
_ALERT = re.compile(r"alert ([a-z ]+[a-z])")
_NO_CERTIFICATE = "certificate required"
#: Alerts of a server that does not accept the certificate of the client.
_REFUSALS = (
    *(f"{word} certificate" for word in ("bad", "unsupported")),
    *(f"certificate {word}" for word in ("expired", "revoked", "unknown")),
    "unknown ca",
    "access denied",
)
#: Alerts of a server with which no handshake can succeed.
_LASTING = (
    _NO_CERTIFICATE,
    *_REFUSALS,
    "handshake failure",
    "protocol version",
    "unrecognized name",
)


def is_lasting(error: ssl.SSLError) -> bool:
    """Return whether the next handshake fails too, unless a setting is changed."""
    return (
        isinstance(error, ssl.SSLCertVerificationError)
        or _is_without_tls(error)
        or _alert_of(error) in _LASTING
    )


def lacks_protocol(error: ssl.SSLError) -> bool:
    """Return whether the server speaks none of the application protocols that were offered."""
    return _alert_of(error) == "no application protocol"


def describe(error: ssl.SSLError, where: str, setting: str) -> str:
    """Describe a failed handshake in one line that names the setting to change; ``setting`` has the
    address.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _describe_certificate(error, where, setting)
    if _is_without_tls(error):
        return f"{where} does not use TLS: write http:// instead of https:// in {setting}"
    alert = _alert_of(error)
    if alert == _NO_CERTIFICATE:
        return f"{where} requires a client certificate: set client_cert (TINKER_CLIENT_CERT)"
    if alert in _REFUSALS:
        return (
            f"{where} does not accept the client certificate ({alert}): check client_cert "
            "(TINKER_CLIENT_CERT)"
        )
    if alert == "handshake failure":
        return (
            f"{where} refused the TLS handshake; if it requires a client certificate, set "
            "client_cert (TINKER_CLIENT_CERT)"
        )
    return f"the TLS handshake with {where} failed: {alert or error.reason or error}"


def find_refusal(error: Exception | None, where: str) -> ExchangeFailed | None:
    """Return the failure of a connection that was lost because the server refuses the client's
    certificate, or wants one.

    TLS 1.3 does so after the handshake; no request has run. Or because memory was missing for what
    it sent. None if the connection was lost for another reason.
    """
    if isinstance(error, MemoryError):
        return out_of_memory()
    if isinstance(error, ssl.SSLError) and _alert_of(error) in (_NO_CERTIFICATE, *_REFUSALS):
        return _as_failure(error, where)
    return None


def explain_handshake(error: Exception, url: str) -> ExchangeFailed | None:
    """Return the failure of an exchange by httpx among whose causes is one of TLS that lasts; None
    if there is none.
    """
    import httpx

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    where = urlsplit(url).netloc.rpartition("@")[2]
    if cause is None or not isinstance(error, httpx.ConnectError):
        return find_refusal(error if cause is None else cause, where)
    return _as_failure(cause, where) if is_lasting(cause) else None


def _as_failure(error: ssl.SSLError, where: str) -> ExchangeFailed:
    return ExchangeFailed(
        describe(error, where, "base_url (TINKER_BASE_URL)"),
        never_connected=True,
        wrong_address=True,
        says_what_to_do=True,
    )


def find_issuer(secured: ssl.SSLObject) -> str | None:
    """Return the names of the issuer of the peer's certificate; None without one."""
    issuer = cast(
        "Iterable[Iterable[tuple[str, str]]]", (secured.getpeercert() or {}).get("issuer", ())
    )
    names = dict(pair for part in issuer for pair in part)
    return (
        ", ".join(names[kind] for kind in ("organizationName", "commonName") if kind in names)
        or None
    )


def describe_connection(
    engine: str, http_version: str, secured: ssl.SSLObject | None, proxy: str | None
) -> ConnectionFacts:
    """Describe a connection that is open."""
    tls_version, issuer = (
        (None, None) if secured is None else (secured.version(), find_issuer(secured))
    )
    shown = None if proxy is None else show_url(proxy)
    return ConnectionFacts(engine, http_version, tls_version, issuer, shown)


def _describe_certificate(error: ssl.SSLCertVerificationError, where: str, setting: str) -> str:
    why = error.verify_message.rstrip(".")
    if error.verify_code in _OTHER_NAME:
        return f"the certificate of {where} is for another name ({why}): check {setting}"
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return (
            f"the certificate of {where} is not valid now ({why}): renew it, or set "
            "the clock of this machine"
        )
    return (
        f"the certificate of {where} is not trusted ({why}): name its authority in ca_file "
        f"(TINKER_CA_FILE, SSL_CERT_FILE){explain_missing_certificates()}"
    )


def _is_without_tls(error: ssl.SSLError) -> bool:
    return error.reason in _PLAIN_TEXT_REASONS


def _alert_of(error: ssl.SSLError) -> str | None:
    """Return the alert that the other side has sent, in the words of the standard; the names in
    OpenSSL differ by version.
    """
    found = _ALERT.search(str(error))
    return None if found is None else found[1]


ACCEPTED_ENCODINGS = "gzip, deflate"
# The packed forms of a response of this size are no bigger in practice; a bomb unpacks to a
# thousand times its size.
MAX_UNPACKED_NBYTES = 256 << 20
# The bytes decompressed before the loop gets its turn.
_STEP_NBYTES = 1 << 18
_GZIP_BITS = zlib.MAX_WBITS | 16
_Unpacker: TypeAlias = "zlib._Decompress"  # pyright: ignore[reportPrivateUsage]


async def unpack(body: bytes, encoding: str, most: int = MAX_UNPACKED_NBYTES) -> bytes:
    """Return the content of a body with this Content-Encoding.

    Raises ValueError for one that is broken or unknown, ExchangeFailed for one of more than
    ``most`` bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity") or not body:
        return body
    if name not in _OPENERS:
        raise ValueError(
            f"the response has the Content-Encoding {name[:40]!r}, which the client did not accept"
        )
    packed = _Packed(body, _OPENERS[name](body), min(most, MAX_UNPACKED_NBYTES))
    packed.step(_STEP_NBYTES)
    if not packed.done:
        await asyncio.to_thread(packed.finish)
    return bytes(packed.content)


class _Packed:
    """One body on its way out of its packing."""

    def __init__(self, body: bytes, unpacker: _Unpacker, most: int) -> None:
        self._most = most
        self._rest = body
        self._unpacker = unpacker
        self.content = bytearray()
        self.done: bool = False

    def finish(self) -> None:
        """Unpack the rest."""
        while not self.done:
            self.step(_STEP_NBYTES)
            check_size(len(self.content), self._most)

    def step(self, nbytes: int) -> None:
        """Unpack so much, at most."""
        try:
            piece = self._unpacker.decompress(self._rest, nbytes)
        except zlib.error as error:
            raise ValueError(f"the response cannot be decompressed: {error}") from error
        self.content += piece
        self._rest = self._unpacker.unconsumed_tail
        if self._unpacker.eof:
            self._next_member()
        elif not piece and not self._rest:
            raise ValueError("the compressed response is incomplete")

    def _next_member(self) -> None:
        """Begin the next part: a gzip body may have several, one after the other."""
        self._rest = self._unpacker.unused_data
        self.done = not self._rest.strip(b"\0")
        self._unpacker = zlib.decompressobj(_GZIP_BITS)


def _gzip(_: bytes) -> _Unpacker:
    return zlib.decompressobj(_GZIP_BITS)


def _deflate(body: bytes) -> _Unpacker:
    """Unpack deflate; some servers leave out the zlib header, whose first byte is known."""
    return zlib.decompressobj(
        zlib.MAX_WBITS if body[0] & 0x0F == zlib.DEFLATED else -zlib.MAX_WBITS
    )


_OPENERS: dict[str, Callable[[bytes], _Unpacker]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
}
