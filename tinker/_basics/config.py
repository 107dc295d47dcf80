"""The settings of one client, each with its variable and default; proxies, and contexts of TLS."""

from __future__ import annotations

import base64
import math
import os
import platform
import re
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, get_args
from urllib.parse import SplitResult, unquote, urlsplit

import attrs
import msgspec

from tinker._basics.checks import check_count, check_field, check_number, check_type
from tinker._version import __version__

PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_SCHEMES = ("http://", "https://", "socks5://", "socks5h://")


@attrs.frozen
class Proxies:
    """``always`` is for every address. Else the proxy of the address's scheme, or of ``all``,
    unless ``no_proxy`` has its host.

    This machine itself is reached through ``always`` only. Addresses of proxies may hold passwords.
    """

    always: str | None = attrs.field(default=None, repr=False)
    by_scheme: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)
    no_proxy: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether every address is reached directly."""
        return self.always is None and not self.by_scheme

    def of(self, url: str) -> str | None:
        """Return the proxy for an address; None where it is reached directly."""
        if self.always is not None or not self.by_scheme:
            return self.always
        parts = urlsplit(url)
        proxy = self.by_scheme.get(parts.scheme) or self.by_scheme.get("all")
        host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme)
        is_here = host in ("localhost", "::1") or host.startswith("127.")
        return (
            None if is_here or any(_covers(entry, host, port) for entry in self.no_proxy) else proxy
        )


def _covers(entry: str, host: str, port: int | None) -> bool:
    """Return whether an entry of NO_PROXY, a host or domain, with or without a port, has this
    address; ``*`` has all.
    """
    name, colon, wanted = entry.rpartition(":")
    # no port; an address of IPv6
    if not colon or not wanted.isdigit() or (":" in name and not name.startswith("[")):
        name, wanted = entry, ""
    name = name.removeprefix("*").removeprefix(".").strip("[]")
    return not name or ((host == name or host.endswith(f".{name}")) and wanted in ("", str(port)))


def from_environment(env: Mapping[str, str], ours: str, given: str | None = None) -> Proxies:
    """Read the proxies of these variables, ``ours`` and the usual ones; ValueError for addresses of
    another scheme.

    ``given`` takes the place of ``ours``.
    """

    def read(name: str) -> str | None:
        return check(name, env.get(name))

    def check(name: str, given: str | None) -> str | None:
        proxy = lower_scheme(given or "")
        if proxy and not proxy.startswith(_SCHEMES):
            raise ValueError(
                f"{name} must be a proxy address with {' or '.join(_SCHEMES)}, got "
                f"{proxy.partition('://')[0]!r}"
            )
        return proxy or None

    found = {
        scheme: read(f"{scheme}_proxy") or read(f"{scheme.upper()}_PROXY")
        for scheme in ("http", "https", "all")
    }
    by_scheme = {scheme: proxy for scheme, proxy in found.items() if proxy is not None}
    excluded = (env.get("no_proxy") or env.get("NO_PROXY") or "").lower().split(",")
    return Proxies(
        check("proxy", given) or read(ours),
        by_scheme,
        tuple(entry.strip() for entry in excluded if entry.strip()),
    )


def lower_scheme(url: str) -> str:
    """Return an address with its scheme in lower case, which means the same."""
    return re.sub("^[^:]+://", lambda scheme: scheme[0].lower(), url)


@attrs.frozen
class Trust:
    """Certificates besides those of the system: of an authority, and of the client with its private
    key, as PEM files.
    """

    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    _contexts: dict[tuple[str, ...], ssl.SSLContext] = attrs.field(
        factory=dict[tuple[str, ...], ssl.SSLContext], init=False, eq=False, repr=False
    )

    def context(self, *protocols: str) -> ssl.SSLContext:
        """Return the context for connections with these application protocols, best first; it is
        made once.

        The system's certificates are those of OpenSSL, which follows ``SSL_CERT_FILE`` and
        ``SSL_CERT_DIR``.

        Raises:
            ValueError: A file cannot be used.
        """
        context = self._contexts.get(protocols)
        if context is None:
            context = ssl.create_default_context()
            if not context.get_ca_certs() and not _has_folder():
                import certifi  # the certificates that httpx brings

                context.load_verify_locations(certifi.where())
            self._add_files(context)
            context.set_alpn_protocols(list(protocols))
            self._contexts[protocols] = context
        return context

    def check(self) -> None:
        """Raise ValueError if a file cannot be used."""
        if self.client_key is not None and self.client_cert is None:
            raise ValueError(
                "client_key (TINKER_CLIENT_KEY) needs client_cert "
                "(TINKER_CLIENT_CERT), which it belongs to"
            )
        if self.ca_file is not None or self.client_cert is not None:
            self._add_files(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _add_files(self, context: ssl.SSLContext) -> None:
        try:
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
        except OSError as error:  # which an SSLError is
            raise ValueError(
                f"ca_file (TINKER_CA_FILE) cannot be used: {_explain(error, self.ca_file)}"
            ) from None
        try:
            if self.client_cert is not None:
                context.load_cert_chain(
                    self.client_cert, self.client_key, password=_refuse_encrypted
                )
        except OSError as error:
            setting = "client_cert (TINKER_CLIENT_CERT)"
            if self.client_key is not None:
                setting += " with client_key (TINKER_CLIENT_KEY)"
            raise ValueError(
                f"{setting} cannot be used: {_explain(error, self.client_cert, self.client_key)}"
            ) from None


def _refuse_encrypted() -> str:
    """Refuse a key that needs a password, instead of asking for it on the terminal."""
    raise OSError("the private key is encrypted; store it without a password")


def _explain(error: OSError, *files: Path | None) -> str:
    """Say what is wrong with which file."""
    missing = next((file for file in files if file is not None and not file.is_file()), None)
    if missing is not None:
        return f"there is no file {missing}"
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror or str(error)
    shown = " and ".join(str(file) for file in files if file is not None)
    return f"{shown}: {_REASONS.get(reason or _UNNAMED, reason)}"


_UNNAMED = "PEM lib"
#: OpenSSL's words for what is wrong with a file, in ours.
_REASONS = {
    _UNNAMED: "a certificate and its private key are needed, in the PEM format",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it has no certificate in the PEM format",
    "NO_START_LINE": "it has no certificate in the PEM format",
    "KEY_VALUES_MISMATCH": "the private key belongs to another certificate",
}


def _has_folder() -> bool:
    """Return whether OpenSSL has a folder of certificates, which it reads when it needs one."""
    paths = ssl.get_default_verify_paths()
    return bool(paths.capath) and any(Path(paths.capath).glob("*.[0-9]"))


# ruff: noqa: RUF009 - the function that describes a setting makes a field


T = TypeVar("T")

LOCAL_SCHEME = "local://"
_API_PATH = "/api/v1"
_ON = frozenset({"1", "true", "yes", "on"})
_OFF = frozenset({"0", "false", "no", "off"})

# Texts of variables, none of them blank. Each function gets the name of the variable for its error.


def read_text(_: str, text: str) -> str:
    """Return the text."""
    return text


def read_path(_: str, text: str) -> Path:
    """Return the path of a file or folder."""
    return Path(text)


def read_home(_: str, text: str) -> Path:
    """Return where the credential is stored in a home folder."""
    return Path(text) / ".tinker" / "credentials.json"


def read_words(_: str, text: str) -> tuple[str, ...]:
    """Return the words between commas, each once."""
    return tuple(dict.fromkeys(word for word in text.split(",") if word))


def read_switch(_: str, text: str) -> bool:
    """Return whether the text says that something is on."""
    return text.strip().lower() in _ON


def read_dump_target(_: str, text: str) -> str | None:
    """Return where exchanges are written to: ``-`` if the variable is a switch that is on, else the
    file that it names.
    """
    word = text.strip().lower()
    return None if word in _OFF else "-" if word in _ON else text


def read_count(name: str, text: str) -> int:
    """Return an integer of at least 1."""
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {text!r}")
    return int(text)


def read_seconds(name: str, text: str) -> float:
    """Return a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"{name} must be a number of seconds above 0, got {text.strip()!r}")
    return seconds


def read_strings(name: str, text: str) -> dict[str, str]:
    """Return a JSON object whose values are strings."""
    return _read_object(name, text, dict[str, str], "strings")


def read_counts(name: str, text: str) -> dict[str, int]:
    """Return a JSON object whose values are integers."""
    return _read_object(name, text, dict[str, int], "integers")


def _read_object(name: str, text: str, kind: type[T], values: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} must be a JSON object of {values}: {error}") from None


# Keys and addresses, of arguments and variables.


def read_key(name: str, key: object) -> str | None:
    """Return the key without the line break that files of keys end with. ValueError for one that
    cannot be sent.
    """
    if not isinstance(key, str):
        raise TypeError(f"{name} must be a string, got {type(key).__name__}")
    stripped = key.strip()
    if not is_sendable(stripped):
        raise ValueError(
            f"{name} must be one line of plain ASCII text, but it contains a line "
            "break or another character"
        )
    return stripped or None


def is_sendable(key: str) -> bool:
    """Return whether a header can carry a key."""
    return key.isascii() and key.isprintable()


_NEARLY_LOCAL = re.compile(r"local(?::/?(\D.*)?)?")
_NOT_IN_URLS = re.compile(r"[\s\x00-\x1f\x7f?#]")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def read_base_url(url: object) -> str:
    """Return the address of a server, without the name and the password that it may have."""
    if not isinstance(url, str):
        raise TypeError(f"base_url must be a string, got {type(url).__name__}")
    url = lower_scheme(url)
    if not url.startswith(("http://", "https://", LOCAL_SCHEME)):
        shown = _redact(url)
        local = _NEARLY_LOCAL.fullmatch(shown)
        likely = f"{LOCAL_SCHEME}{local[1] or ''}" if local else f"http://{shown}"
        meant = "" if "://" in url else f"; did you mean {likely!r}?"
        raise ValueError(
            f"base_url must start with http://, https:// or {LOCAL_SCHEME}, got {shown!r}{meant}"
        )
    if url.startswith(LOCAL_SCHEME):
        return url
    parts = _split(url.rstrip("/"))
    if parts.path.endswith(_API_PATH):
        shown = _redact(url.rstrip("/").removesuffix(_API_PATH))
        raise ValueError(f"base_url ends in {_API_PATH}, which the client adds; write {shown!r}")
    return parts._replace(netloc=_normal_host(parts)).geturl()


def _normal_host(parts: SplitResult) -> str:
    """Return the host and port in the one form that clients of the same server share: lower case,
    no default port.
    """
    return (
        parts.netloc.rpartition("@")[2]
        .lower()
        .removesuffix(_DEFAULT_PORTS[parts.scheme])
        .removesuffix(":")
    )


def _split(url: str) -> SplitResult:
    shown = _redact(url)
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ValueError(f"base_url is not a valid URL: {shown!r}: {error}") from None
    if not has_host or _NOT_IN_URLS.search(url):
        raise ValueError(f"base_url must have the form http://host[:port][/path], got {shown!r}")
    return parts


def _redact(url: str) -> str:
    """Return an address as errors show it."""
    return f"...@{url.rpartition('@')[2]}" if "@" in url else url


def is_loopback(host: str) -> bool:
    """Return whether a name or an address reaches nothing but this machine."""
    import ipaddress  # rare

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def show_url(url: str) -> str:
    """Return a base URL as a repr may show it: without a name and password, and without a query,
    which may hold a key.

    >>> show_url("https://me:secret@host:8443/tinker?key=secret")
    'https://host:8443/tinker'
    """
    scheme, separator, rest = url.partition("://")
    rest = rest.partition("?")[0].partition("#")[0]
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


# Headers of our own, as we spell them: one that somebody overrides must not be there twice.
_OUR_HEADERS = (
    "Accept",
    "Authorization",
    "User-Agent",
    "X-API-Key",
    "CF-Access-Client-Id",
    "CF-Access-Client-Secret",
)
_SPELLING = {name.lower(): name for name in _OUR_HEADERS}


def spell_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return headers with those of our own as we spell them."""
    return {_SPELLING.get(name.lower(), name): value for name, value in (headers or {}).items()}


HOSTED_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
#: What connections are for, and how many of them there may be at once.
CONNECTIONS: Mapping[str, int] = MappingProxyType(
    {"upload": 8, "sample": 512, "poll": 1000, "session": 8, "heartbeat": 2, "stream": 256}
)
TELEMETRY = "TINKER_TELEMETRY"
WireChoice: TypeAlias = Literal["auto", "proto", "json"]
_BREAKS = re.compile(r"[\r\n\x00]")


class ConfigSettings(TypedDict, total=False):
    """The keywords of :meth:`Config.load`: the settings, each as the attribute of its name, and one
    proxy for everything.
    """

    base_url: str | None
    api_key: str | None
    credential_cmd: str | None
    credentials_file: Path | None
    project_id: str | None
    tags: tuple[str, ...] | None
    wire: WireChoice | None
    proxy: str | None
    proxies: Proxies | None
    proxy_headers: Mapping[str, str] | None
    ca_file: Path | None
    client_cert: Path | None
    client_key: Path | None
    headers: Mapping[str, str] | None
    query: Mapping[str, str] | None
    sdk_version: str | None
    local_dir: Path | None
    patience_seconds: float | None
    fail_fast: bool | None
    max_retries: int | None
    silence_seconds: float | None
    connections: Mapping[str, int] | None
    sample_submissions: int | None
    heartbeat_seconds: float | None
    heartbeat_warning_seconds: float | None
    heartbeat_lost_seconds: float | None
    telemetry: bool | None
    trace_context: bool | None
    dump_http: str | None


def _setting(
    variable: str,
    read: Callable[[str, str], object] | None = None,
    *,
    argument: str | None = None,
    default_text: str | None = None,
    **field: Any,
) -> Any:
    """Describe a setting: its variable, which ``read(variable, text)`` reads, its argument, and its
    default in words.
    """
    about = {"variable": variable, "read": read, "argument": argument, "default": default_text}
    if "factory" not in field:
        field.setdefault("default", None)
    return attrs.field(metadata=about, **field)


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise TypeError or ValueError unless they can be sent."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the header {name!r} must be a string")
        if _BREAKS.search(name) or _BREAKS.search(value):
            raise ValueError(f"the header {name!r} must not contain a line break")


def check_wire(choice: object) -> None:
    """Raise ValueError unless it is a known encoding."""
    if choice not in get_args(WireChoice):
        raise ValueError(f"wire must be one of {', '.join(get_args(WireChoice))}, got {choice!r}")


def check_connections(connections: Mapping[str, int]) -> None:
    """Raise TypeError or ValueError unless each is the number of connections of a known kind."""
    for name, count in connections.items():
        if name not in CONNECTIONS:
            raise ValueError(f"connections: {name!r} is not one of {', '.join(CONNECTIONS)}")
        check_count(f"connections[{name!r}]", count)


def _check(check: Callable[[Any], None]) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    return lambda _, __, value: check(value)


_SECONDS = check_field(check_number, positive=True, finite=False)
_optional = attrs.converters.optional
_or_none = attrs.validators.optional


def identify() -> dict[str, str]:
    """Return the header that says which client this is."""
    return {"User-Agent": f"tinker-open-client/{__version__} Python/{platform.python_version()}"}


def _identify_too(headers: Mapping[str, str]) -> dict[str, str]:
    return {**identify(), **headers}


@attrs.frozen(kw_only=True)
class Config:
    """Settings of a client, for ``ServiceClient(config=...)``; the repr leaves secrets out.

    :meth:`load` creates one from arguments and the environment, and raises ValueError or TypeError
    for invalid values.

    Attributes:
        base_url: The address of the server, without a slash at the end; ``local://`` is a server in
            your process.
        api_key: The credential.
        credential_cmd: A command that prints the credential.
        credentials_file: Where ``tinker auth login`` keeps the credential.
        project_id: The project of new sessions.
        tags: Tags of new sessions; in the variable separated by commas.
        wire: The encoding of training requests: ``auto``, ``proto`` or ``json``.
        proxies: The proxy for every address; if unset, ``HTTPS_PROXY``, ``HTTP_PROXY``,
            ``ALL_PROXY`` and ``NO_PROXY`` apply.
        proxy_headers: Headers that are sent only to the proxy, a JSON object.
        ca_file: Certificates of authorities that are trusted besides the system's, a PEM file.
        client_cert: The certificate that the client shows to the server, a PEM file.
        client_key: The private key of the client certificate, a PEM file.
        headers: Headers of every request, a JSON object.
        query: Query parameters of every request, a JSON object.
        sdk_version: The version that is sent to servers.
        local_dir: Where local servers keep checkpoints.
        patience_seconds: How long a failed request is retried, in seconds; 0 for a single attempt,
            None for the policy of its kind.
        fail_fast: Whether to raise an error on a rate limit instead of waiting.
        max_retries: The maximum number of retries of a request; None for the policy of its kind.
        silence_seconds: How long a server may stay silent before an attempt ends, in seconds.
        connections: The maximum number of connections per purpose, a JSON object; the others keep
            their default.
        sample_submissions: The maximum number of samples that are submitted at the same time.
        heartbeat_seconds: The time between heartbeats of the session, in seconds.
        heartbeat_warning_seconds: Seconds without a successful heartbeat before a warning is
            logged.
        heartbeat_lost_seconds: Seconds without a successful heartbeat before the session counts as
            lost; None for never.
        telemetry: Whether to report failures to the server.
        trace_context: Whether to send the trace of your OpenTelemetry span.
        dump_http: Where to write HTTP exchanges, without secrets: a file, or ``-`` (in the variable
            ``1``) for standard error.

    >>> import tinker
    >>> config = tinker.Config.load(
    ...     base_url="local://toy", connections={"sample": 64}, heartbeat_lost_seconds=300
    ... )
    >>> service = tinker.ServiceClient(config=config)
    """

    base_url: str = _setting(
        "TINKER_BASE_URL",
        argument="base_url",
        default_text="the hosted service",
        default=HOSTED_URL,
        converter=read_base_url,
    )
    api_key: str | None = _setting(
        "TINKER_API_KEY",
        read_key,
        argument="api_key",
        repr=False,
        converter=_optional(partial(read_key, "api_key")),
    )
    credential_cmd: str | None = _setting("TINKER_CREDENTIAL_CMD", read_text, repr=False)
    credentials_file: Path = _setting(
        "HOME", read_home, default=Path("~/.tinker/credentials.json"), converter=Path.expanduser
    )
    project_id: str | None = _setting("TINKER_PROJECT_ID", read_text, argument="project_id")
    tags: tuple[str, ...] = _setting("TINKER_TAGS", read_words, default=())
    wire: WireChoice = _setting(
        "TINKER_WIRE", read_text, argument="wire", default="auto", validator=_check(check_wire)
    )
    proxies: Proxies = _setting("TINKER_PROXY", default_text="none", factory=Proxies)
    proxy_headers: Mapping[str, str] = _setting(
        "TINKER_PROXY_HEADERS",
        read_strings,
        default_text="none",
        factory=dict,
        repr=False,
        validator=_check(check_headers),
    )
    ca_file: Path | None = _setting("TINKER_CA_FILE", read_path, converter=_optional(Path))
    client_cert: Path | None = _setting("TINKER_CLIENT_CERT", read_path, converter=_optional(Path))
    client_key: Path | None = _setting(
        "TINKER_CLIENT_KEY",
        read_path,
        default_text="in the file of the certificate",
        converter=_optional(Path),
    )
    headers: Mapping[str, str] = _setting(
        "TINKER_DEFAULT_HEADERS",
        read_strings,
        argument="default_headers_overrides",
        default_text="none",
        factory=dict,
        repr=False,
        converter=_identify_too,
        validator=_check(check_headers),
    )
    query: Mapping[str, str] = _setting(
        "TINKER_DEFAULT_QUERY",
        read_strings,
        argument="default_query",
        default_text="none",
        factory=dict,
        repr=False,
    )
    sdk_version: str = _setting(
        "TINKER_SDK_VERSION", read_text, default_text="of this package", default=__version__
    )
    local_dir: Path | None = _setting(
        "TINKER_LOCAL_DIR", read_path, default_text="`~/.tinker/local`"
    )
    patience_seconds: float | None = _setting(
        "",
        argument="patience_seconds",
        default_text="minutes, by kind of request",
        validator=_or_none(check_field(check_number, finite=False)),
    )
    fail_fast: bool = _setting("TINKER_FAIL_FAST", read_switch, argument="fail_fast", default=False)
    max_retries: int | None = _setting(
        "",
        argument="max_retries",
        default_text="no limit but time",
        validator=_or_none(check_field(check_count, least=0)),
    )
    silence_seconds: float | None = _setting(
        "",
        argument="timeout",
        default_text="seconds to minutes, by kind of request",
        validator=_or_none(_SECONDS),
    )
    connections: Mapping[str, int] = _setting(
        "TINKER_CONNECTIONS",
        read_counts,
        default_text=", ".join(f"{name} {count}" for name, count in CONNECTIONS.items()),
        factory=dict,
        validator=_check(check_connections),
    )
    sample_submissions: int = _setting(
        "TINKER_SAMPLE_SUBMISSIONS", read_count, default=400, validator=check_field(check_count)
    )
    heartbeat_seconds: float = _setting(
        "TINKER_HEARTBEAT_SECONDS", read_seconds, default=10.0, validator=_SECONDS
    )
    heartbeat_warning_seconds: float = _setting(
        "TINKER_HEARTBEAT_WARNING_SECONDS", read_seconds, default=120.0, validator=_SECONDS
    )
    heartbeat_lost_seconds: float | None = _setting(
        "TINKER_HEARTBEAT_LOST_SECONDS",
        read_seconds,
        default_text="never",
        validator=_or_none(_SECONDS),
    )
    telemetry: bool = _setting(TELEMETRY, read_switch, argument="telemetry", default=False)
    trace_context: bool = _setting("TINKER_TRACE_CONTEXT", read_switch, default=True)
    dump_http: str | None = _setting("TINKER_DUMP_HTTP", read_dump_target, default_text="nowhere")

    def __attrs_post_init__(self) -> None:
        """Check the files with certificates, so that one that cannot be used is noticed before a
        request.
        """
        self.trust.check()

    @classmethod
    def load(cls, **settings: Unpack[ConfigSettings]) -> Config:
        """Load the settings from arguments, the environment for arguments that are missing or None,
        and the defaults.

        Args:
            **settings: The attributes of this class, as keywords. ``proxy`` is the address of one
                proxy for all requests.

        Returns:
            The settings. Later changes to the environment do not affect them.

        Raises:
            ValueError: A setting is invalid, whether passed or read from the environment.
            TypeError: A setting has the wrong type, or does not exist.
        """
        return load_config(**settings)

    @property
    def trust(self) -> Trust:
        """Return the certificates that connections are made with."""
        return Trust(self.ca_file, self.client_cert, self.client_key)

    @property
    def is_hosted(self) -> bool:
        """Return whether the server is the hosted service, which requires a key."""
        return self.base_url == HOSTED_URL

    @property
    def is_local(self) -> bool:
        """Return whether the server runs in this process."""
        return self.base_url.startswith(LOCAL_SCHEME)


def load_config(
    *, environ: Mapping[str, str] | None = None, **given: Unpack[ConfigSettings]
) -> Config:
    """Read the settings now, of arguments or else of the environment (None: the process's), so that
    later variables count.

    An empty variable or text counts as unset.

    Raises ValueError for an unknown wire, a base URL that cannot be used, a key or header that
    cannot be sent, a URL that is not a proxy's, and variables that do not have their form;
    TypeError for a setting that does not exist.
    """
    env = os.environ if environ is None else environ
    chosen = drop_unset(given)
    wanted = chosen.get("base_url") or env.get("TINKER_BASE_URL") or HOSTED_URL
    url = read_base_url(wanted)
    proxy = chosen.pop("proxy", None)
    proxies = (
        Proxies() if url.startswith(LOCAL_SCHEME) else from_environment(env, "TINKER_PROXY", proxy)
    )
    derived = {"headers": {**_cloudflare(env), **_password(wanted, url, env)}, "proxies": proxies}
    return Config(**merge(merge(derived, _read_variables(env)), {**chosen, "base_url": url}))


def _read_variables(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that the environment has."""
    found: dict[str, Any] = {}
    for field in attrs.fields(Config):
        variable, read = field.metadata["variable"], field.metadata["read"]
        if read is not None and env.get(variable, "").strip():
            found[field.name] = read(variable, env[variable])
    return drop_unset(found)


def override(config: Config, **given: Unpack[ConfigSettings]) -> Config:
    """Return the settings with those of the arguments that are given in their place; headers and
    query are added.
    """
    return attrs.evolve(
        config, **merge({"headers": config.headers, "query": config.query}, drop_unset(given))
    )


def load_later(config: Config | None, **given: Unpack[ConfigSettings]) -> Callable[[], Config]:
    """Check the arguments, and return a function that loads the settings once they are needed.

    With a ``config``, the arguments override it, and the environment is not read. Raises ValueError
    and TypeError.
    """
    check_type("config", config, Config)
    checked = override(config or Config(), **given)
    # A function, as the repr of a partial would show the key.
    return lambda: load_config(**given) if config is None else checked


def drop_unset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings that are None or blank text."""
    return {
        name: value
        for name, value in settings.items()
        if (value.strip() if isinstance(value, str) else value is not None)
    }


def merge(settings: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Return settings with later ones in their place; headers and query are added."""
    headers = {**settings.get("headers", {}), **spell_headers(later.get("headers"))}
    query = {**settings.get("query", {}), **later.get("query", {})}
    return {**settings, **later, "headers": headers, "query": query}


# ---------------------------------------------------------------- what the environment says besides


def local_dir() -> Path | None:
    """Return where servers of this machine keep checkpoints, unless an argument says so."""
    return _path("TINKER_LOCAL_DIR")


def prices_file() -> Path | None:
    """Return the price list of commands, unless an option names one."""
    return _path("TINKER_PRICES")


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text) if text else None


def explain_missing_certificates() -> str:
    """Return the end of a message: what OpenSSL is told to read and is not there. Empty if it is
    there.
    """
    file, folders = (
        os.environ.get("SSL_CERT_FILE"),
        os.environ.get("SSL_CERT_DIR", "").split(os.pathsep),
    )
    if file and not Path(file).is_file():
        return f"; there is no file {file}, which SSL_CERT_FILE names"
    missing = any(folders) and not any(Path(one).is_dir() for one in folders)
    return (
        f"; there is no folder {os.pathsep.join(folders)}, which SSL_CERT_DIR names"
        if missing
        else ""
    )


def is_telemetry_unset() -> bool:
    """Return whether the environment does not say whether telemetry is sent."""
    return not os.environ.get(TELEMETRY, "").strip()


def serve_api_key() -> str | None:
    """Return the key that a server started here asks its clients for, unless an
    option gives one.
    """
    return os.environ.get("TINKER_SERVE_API_KEY") or None


def login_shell() -> str:
    """Return the name of the user's shell; empty where the system does not know it."""
    return Path(os.environ.get("SHELL", "")).name


def _password(wanted: str, url: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the header for the name and password of the address; of the one in the environment for
    the same server.
    """
    if url.startswith(LOCAL_SCHEME):
        return {}
    known = env.get("TINKER_BASE_URL")
    for address in (
        wanted,
        known if known and "@" in known and read_base_url(known) == url else None,
    ):
        parts = urlsplit(address or "")
        if parts.username is not None:
            text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
    return {}


def _cloudflare(env: Mapping[str, str]) -> dict[str, str]:
    pairs = {
        "CF-Access-Client-Id": env.get("CLOUDFLARE_ACCESS_CLIENT_ID"),
        "CF-Access-Client-Secret": env.get("CLOUDFLARE_ACCESS_CLIENT_SECRET"),
    }
    return {name: value for name, value in pairs.items() if value}
