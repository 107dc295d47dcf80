"""The settings of one client, each with its variable, its default and what it means; refused where they cannot be right."""

# ruff: noqa: RUF009 - the function that describes a setting makes a field

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, get_args

import attrs

from tinker._checks import check_count, check_field, check_number, check_type
from tinker._config.proxies import Proxies
from tinker._config.settings import TELEMETRY, drop_unset, gather, merge
from tinker._config.trust import Trust
from tinker._config.values import (
    LOCAL_SCHEME,
    read_base_url,
    read_count,
    read_counts,
    read_dump_target,
    read_home,
    read_key,
    read_path,
    read_seconds,
    read_strings,
    read_switch,
    read_text,
    read_words,
)
from tinker._version import __version__

HOSTED_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
#: What connections are for, and how many of them there may be at once.
CONNECTIONS: Mapping[str, int] = MappingProxyType(
    {"upload": 8, "sample": 512, "poll": 1000, "session": 8, "heartbeat": 2, "stream": 256}
)
WireChoice: TypeAlias = Literal["auto", "proto", "json"]
_BREAKS = re.compile(r"[\r\n\x00]")


class ConfigSettings(TypedDict, total=False):
    """The keywords of :meth:`Config.load`: the settings, each as the attribute of its name, and one proxy for everything."""

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
    """Describe a setting: its variable, which ``read(variable, text)`` reads, its argument, and its default in words."""
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

    :meth:`load` creates one from arguments and the environment, and raises ValueError or TypeError for invalid values.

    Attributes:
        base_url: The address of the server, without a slash at the end; ``local://`` is a server in your process.
        api_key: The credential.
        credential_cmd: A command that prints the credential.
        credentials_file: Where ``tinker auth login`` keeps the credential.
        project_id: The project of new sessions.
        tags: Tags of new sessions; in the variable separated by commas.
        wire: The encoding of training requests: ``auto``, ``proto`` or ``json``.
        proxies: The proxy for every address; if unset, ``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` apply.
        proxy_headers: Headers that are sent only to the proxy, a JSON object.
        ca_file: Certificates of authorities that are trusted besides the system's, a PEM file.
        client_cert: The certificate that the client shows to the server, a PEM file.
        client_key: The private key of the client certificate, a PEM file.
        headers: Headers of every request, a JSON object.
        query: Query parameters of every request, a JSON object.
        sdk_version: The version that is sent to servers.
        local_dir: Where local servers keep checkpoints.
        patience_seconds: How long a failed request is retried, in seconds; 0 for a single attempt, None for the policy of its
            kind.
        fail_fast: Whether to raise an error on a rate limit instead of waiting.
        max_retries: The maximum number of retries of a request; None for the policy of its kind.
        silence_seconds: How long a server may stay silent before an attempt ends, in seconds.
        connections: The maximum number of connections per purpose, a JSON object; the others keep their default.
        sample_submissions: The maximum number of samples that are submitted at the same time.
        heartbeat_seconds: The time between heartbeats of the session, in seconds.
        heartbeat_warning_seconds: Seconds without a successful heartbeat before a warning is logged.
        heartbeat_lost_seconds: Seconds without a successful heartbeat before the session counts as lost; None for never.
        telemetry: Whether to report failures to the server.
        trace_context: Whether to send the trace of your OpenTelemetry span.
        dump_http: Where to write HTTP exchanges, without secrets: a file, or ``-`` (in the variable ``1``) for standard
            error.

    >>> import tinker
    >>> config = tinker.Config.load(base_url="local://toy", connections={"sample": 64}, heartbeat_lost_seconds=300)
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
        "TINKER_API_KEY", read_key, argument="api_key", repr=False, converter=_optional(partial(read_key, "api_key"))
    )
    credential_cmd: str | None = _setting("TINKER_CREDENTIAL_CMD", read_text, repr=False)
    credentials_file: Path = _setting("HOME", read_home, default=Path("~/.tinker/credentials.json"), converter=Path.expanduser)
    project_id: str | None = _setting("TINKER_PROJECT_ID", read_text, argument="project_id")
    tags: tuple[str, ...] = _setting("TINKER_TAGS", read_words, default=())
    wire: WireChoice = _setting("TINKER_WIRE", read_text, argument="wire", default="auto", validator=_check(check_wire))
    proxies: Proxies = _setting("TINKER_PROXY", default_text="none", factory=Proxies)
    proxy_headers: Mapping[str, str] = _setting(
        "TINKER_PROXY_HEADERS", read_strings, default_text="none", factory=dict, repr=False, validator=_check(check_headers)
    )
    ca_file: Path | None = _setting("TINKER_CA_FILE", read_path, converter=_optional(Path))
    client_cert: Path | None = _setting("TINKER_CLIENT_CERT", read_path, converter=_optional(Path))
    client_key: Path | None = _setting(
        "TINKER_CLIENT_KEY", read_path, default_text="in the file of the certificate", converter=_optional(Path)
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
        "TINKER_DEFAULT_QUERY", read_strings, argument="default_query", default_text="none", factory=dict, repr=False
    )
    sdk_version: str = _setting("TINKER_SDK_VERSION", read_text, default_text="of this package", default=__version__)
    local_dir: Path | None = _setting("TINKER_LOCAL_DIR", read_path, default_text="`~/.tinker/local`")
    patience_seconds: float | None = _setting(
        "",
        argument="patience_seconds",
        default_text="minutes, by kind of request",
        validator=_or_none(check_field(check_number, finite=False)),
    )
    fail_fast: bool = _setting("TINKER_FAIL_FAST", read_switch, argument="fail_fast", default=False)
    max_retries: int | None = _setting(
        "", argument="max_retries", default_text="no limit but time", validator=_or_none(check_field(check_count, least=0))
    )
    silence_seconds: float | None = _setting(
        "", argument="timeout", default_text="seconds to minutes, by kind of request", validator=_or_none(_SECONDS)
    )
    connections: Mapping[str, int] = _setting(
        "TINKER_CONNECTIONS",
        read_counts,
        default_text=", ".join(f"{name} {count}" for name, count in CONNECTIONS.items()),
        factory=dict,
        validator=_check(check_connections),
    )
    sample_submissions: int = _setting("TINKER_SAMPLE_SUBMISSIONS", read_count, default=400, validator=check_field(check_count))
    heartbeat_seconds: float = _setting("TINKER_HEARTBEAT_SECONDS", read_seconds, default=10.0, validator=_SECONDS)
    heartbeat_warning_seconds: float = _setting(
        "TINKER_HEARTBEAT_WARNING_SECONDS", read_seconds, default=120.0, validator=_SECONDS
    )
    heartbeat_lost_seconds: float | None = _setting(
        "TINKER_HEARTBEAT_LOST_SECONDS", read_seconds, default_text="never", validator=_or_none(_SECONDS)
    )
    telemetry: bool = _setting(TELEMETRY, read_switch, argument="telemetry", default=False)
    trace_context: bool = _setting("TINKER_TRACE_CONTEXT", read_switch, default=True)
    dump_http: str | None = _setting("TINKER_DUMP_HTTP", read_dump_target, default_text="nowhere")

    def __attrs_post_init__(self) -> None:
        """Check the files with certificates, so that one that cannot be used is noticed before a request."""
        self.trust.check()

    @classmethod
    def load(cls, **settings: Unpack[ConfigSettings]) -> Config:
        """Load the settings from arguments, the environment for arguments that are missing or None, and the defaults.

        Args:
            **settings: The attributes of this class, as keywords. ``proxy`` is the address of one proxy for all requests.

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


def load_config(*, environ: Mapping[str, str] | None = None, **given: Unpack[ConfigSettings]) -> Config:
    """Read the settings now, so that a variable set after import counts.

    Raises ValueError for an unknown wire, a base URL that cannot be used, a key or header that cannot be sent, a URL that is
    not a proxy's, and variables that do not have their form; TypeError for a setting that does not exist.
    """
    return Config(**gather(attrs.fields(Config), given, HOSTED_URL, environ))


def override(config: Config, **given: Unpack[ConfigSettings]) -> Config:
    """Return the settings with those of the arguments that are given in their place; headers and query are added."""
    return attrs.evolve(config, **merge({"headers": config.headers, "query": config.query}, drop_unset(given)))


def load_later(config: Config | None, **given: Unpack[ConfigSettings]) -> Callable[[], Config]:
    """Check the arguments, and return a function that loads the settings once they are needed.

    With a ``config``, the arguments override it, and the environment is not read. Raises ValueError and TypeError.
    """
    check_type("config", config, Config)
    checked = override(config or Config(), **given)
    # A function, as the repr of a partial would show the key.
    return lambda: load_config(**given) if config is None else checked
